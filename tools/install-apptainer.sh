#!/bin/bash
# Makes Apptainer available: leaves one that works as it is; else, as root, the distribution's package; else Debian's
# newest build in a folder of the project (.tools/apptainer), which needs no privilege and changes nothing outside of it.
#
# Usage: tools/install-apptainer.sh [FOLDER]
set -euo pipefail

prefix=${1:-$(cd "$(dirname "$0")/.." && pwd)/.tools/apptainer}

say() { printf 'apptainer: %s\n' "$*"; }
cannot() {
  printf 'apptainer: cannot be installed here: %s. The project runs without it (see leonardo doctor).\n' "$*" >&2
  exit 3
}
works() { "$1" --version >/dev/null 2>&1; }

for candidate in "$prefix/bin/apptainer" apptainer; do
  if works "$candidate"; then
    say "$("$candidate" --version | sed 's/^apptainer version //') at $(command -v "$candidate")"
    exit 0
  fi
done

# ---- the distribution's package

if [ "$(id -u)" = 0 ]; then
  if command -v apt-get >/dev/null; then
    apt-get -q update >/dev/null || say 'the package lists could not be refreshed'
    if apt-cache policy apptainer 2>/dev/null | grep -q 'Candidate: [0-9]'; then
      apt-get -q install -y --no-install-recommends apptainer
    fi
  elif command -v dnf >/dev/null && dnf -q list --available apptainer >/dev/null 2>&1; then
    dnf -q install -y apptainer
  fi
  if works apptainer; then
    say "$(apptainer --version | sed 's/^apptainer version //') installed as a package"
    exit 0
  fi
fi

# ---- Debian's newest build, with the C library it wants, in a folder

for tool in apt-get dpkg-deb dpkg; do
  command -v $tool >/dev/null || cannot "the distribution offers no package to this user, and there is no $tool to fetch Debian's"
done
codename=$(. /etc/os-release && printf %s "${VERSION_CODENAME:-}")
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $codename" 2>/dev/null | head -n 1)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
grep -q '^ID=debian' /etc/os-release || cannot "this is not Debian, and the distribution offers no package to this user"
[ -n "$mirror" ] || cannot "apt knows no mirror of $codename"
[ -r $keyring ] || cannot "$keyring is missing (package debian-archive-keyring)"
case $(dpkg --print-architecture) in
  amd64) loader=ld-linux-x86-64.so.2 libraries=lib/x86_64-linux-gnu ;;
  arm64) loader=ld-linux-aarch64.so.1 libraries=lib/aarch64-linux-gnu ;;
  *) cannot "no recipe for the architecture $(dpkg --print-architecture)" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,archives/partial,program,libraries,tool,new}
printf "deb [signed-by=$keyring] $mirror %s main\n" sid "$codename" >"$work/sources.list"
apt_apart() {
  apt-get -q -oDir::Etc::sourcelist="$work/sources.list" -oDir::Etc::sourceparts=/dev/null \
    -oDir::State::Lists="$work/lists" -oDir::State::status=/dev/null -oDir::Cache="$work" \
    -oDir::Cache::archives="$work/archives" -oDir::Cache::pkgcache= -oDir::Cache::srcpkgcache= \
    -oAPT::Sandbox::User= -oAcquire::Languages=none "$@"
}
say "fetching Debian's build from this machine's mirror"
apt_apart update >"$work/log" 2>&1 || cannot "apt-get update failed: $(tail -n 1 "$work/log")"
(cd "$work" && apt_apart download apptainer/sid libc6/sid libseccomp2/sid libsqlite3-0/sid "patchelf/$codename" >"$work/log" 2>&1) ||
  cannot "apt-get download failed: $(tail -n 1 "$work/log")"
dpkg-deb -x "$work"/apptainer_*.deb "$work/program"
for package in libc6 libseccomp2 libsqlite3-0; do dpkg-deb -x "$work/${package}"_*.deb "$work/libraries"; done
dpkg-deb -x "$work"/patchelf_*.deb "$work/tool"

new=$work/new
cp -a "$work"/program/usr/. "$new/"
cp -a "$work"/program/etc "$work"/program/var "$new/"
mkdir -p "$new/glibc"
cp -a "$work"/libraries/usr/$libraries/*.so* "$new/glibc/"
for program in "bin/apptainer" "$libraries/apptainer/bin/starter"; do
  "$work/tool/usr/bin/patchelf" --force-rpath --set-interpreter "$prefix/glibc/$loader" --set-rpath "$prefix/glibc" \
    "$new/$program"
done
# the program looks for its state and settings relative to its own place, which Debian's layout puts one level deeper
ln -sfn ../var "$new/lib/var"
ln -sfn ../etc "$new/lib/etc"
mkdir -p "$(dirname "$prefix")"
rm -rf "$prefix.new"
cp -a "$new" "$prefix.new"
rm -rf "$prefix"
mv "$prefix.new" "$prefix"
works "$prefix/bin/apptainer" || cannot "Debian's build does not run: $("$prefix/bin/apptainer" --version 2>&1 | tail -n 1)"
say "$("$prefix/bin/apptainer" --version | sed 's/^apptainer version //') at $prefix/bin/apptainer"
