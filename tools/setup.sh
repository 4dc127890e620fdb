#!/bin/bash
# Make the Python environment VENV and, as root, install the few system tools that are missing. Idempotent.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
started=$SECONDS
log=$(mktemp -t leonardo-setup.XXXXXX)
trap 'rm -f "$log"' EXIT

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
quietly() { "$@" > "$log" 2>&1 || { tail -n 20 "$log" >&2; fail "failed: $*"; }; }

system_tools() {
  local missing=()
  command -v mmdebstrap > /dev/null || missing+=(mmdebstrap)
  command -v newuidmap > /dev/null || missing+=(uidmap)
  "$python" -c 'import ensurepip' 2> /dev/null || missing+=("${python##*/}-venv")
  [ ${#missing[@]} = 0 ] && return
  if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    say "installing ${missing[*]}"
    quietly apt-get -q update
    DEBIAN_FRONTEND=noninteractive quietly apt-get -q install -y --no-install-recommends "${missing[@]}"
  else
    say "not installed and not root: ${missing[*]} (ask for them, or go on: what needs them says so)"
  fi
}

python=
for candidate in "${PYTHON:-}" python3.11 python3.12 python3; do
  [ -n "$candidate" ] && command -v "$candidate" > /dev/null || continue
  if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2> /dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
  quietly apt-get -q update
  DEBIAN_FRONTEND=noninteractive quietly apt-get -q install -y --no-install-recommends python3 python3-venv
  python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' && python=python3
fi
[ -n "$python" ] || fail "Python 3.11 or 3.12 is needed and was not found. Install it, or name one with PYTHON=..."
system_tools

rm -f "$venv/.ready"
[ -x "$venv/bin/python" ] || quietly "$python" -m venv "$venv"
say "installing Python packages into $venv (about two minutes when new)"
quietly "$venv/bin/python" -m pip install -q --disable-pip-version-check -e '.[desk,test]'
touch "$venv/.ready"
say "ready after $((SECONDS - started)) s"
