#!/bin/bash
# The environment of upstream's trainer, from the locked packages of launch/environments/. Idempotent; goes on where it
# was interrupted. Commands: install, wheels (only download, for machines without a network), lock (make the lock anew).
#   VENV     folder of the environment              VARIANT  cpu or cuda; by default what this machine has
#   WHEELS   folder of downloaded packages: install takes them from there alone, wheels puts them there
#   PYTHON   a Python 3.12, if it is not found      FRESH    with lock: take upstream's versions again, not the lock's
set -euo pipefail
cd "$(dirname "$0")/.."
command=${1:-install}
venv=${VENV:-.venv-upstream}
variant=${VARIANT:-}
wheels=${WHEELS:-}
started=$SECONDS
log=$(mktemp -t leonardo-upstream.XXXXXX)
bootstrap=$(mktemp -t leonardo-upstream.XXXXXX)
trap 'rm -f "$log" "$bootstrap"' EXIT

say() { printf 'upstream-env: %s\n' "$*"; }
fail() { printf 'upstream-env: %s\n' "$*" >&2; exit 1; }
quietly() { "$@" > "$log" 2>&1 || { grep -v '^WARNING' "$log" | tail -n 15 >&2; fail "failed: ${*:0:6} ..."; }; }

[ -n "$variant" ] || variant=$([ -e /proc/driver/nvidia/version ] && echo cuda || echo cpu)
lock=launch/environments/upstream-$variant.txt
[ -f "$lock" ] || [ "$command" = lock ] || fail "no variant $variant: VARIANT is cpu or cuda"

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python python3; do
    [ -n "$candidate" ] && command -v "$candidate" > /dev/null || continue
    "$candidate" -c 'import ensurepip, sys; sys.exit(sys.version_info[:2] != (3, 12))' 2> /dev/null || continue
    python=$candidate
    return
  done
  fail "upstream needs Python 3.12 with venv, which was not found. Install it (a module, python3.12-venv, pyenv), or name it with PYTHON=..."
}

new_venv() { # $1; its build tools come from the lock, as everything else
  [ -x "$1/bin/python" ] || { find_python; quietly "$python" -m venv "$1"; }
  awk '/^[a-z]/ { mine = /^(pip|setuptools|wheel)==/ } mine' "$lock" > "$bootstrap"
  quietly "$1/bin/python" -m pip install "${pip_options[@]}" -r "$bootstrap"
}

# The lock lists every package, and leaves some out on purpose: nothing is resolved here.
pip_options=(--disable-pip-version-check --no-deps --require-hashes --no-input)
fingerprint=$(printf '%s %s %s' "$variant" "$(sha256sum < "$lock" 2> /dev/null)" "$PWD")

case $command in
install)
  if [ -n "$wheels" ]; then
    [ -d "$wheels" ] || fail "WHEELS=$wheels is no folder. Make it where there is a network: make upstream-wheels WHEELS=..."
    pip_options+=(--no-index --find-links "$wheels")
  fi
  if [ -f "$venv/.ready" ]; then
    [ "$(cat "$venv/.ready")" = "$fingerprint" ] && { say "ready already ($variant, $venv)"; exit 0; }
  fi
  if [ -e "$venv" ] && [ "$(cat "$venv/.variant" 2> /dev/null)" != "$variant" ]; then
    fail "$venv is there and holds no $variant environment of upstream. Remove it, or name another folder: UPSTREAM_VENV=..."
  fi
  mkdir -p "$venv"
  rm -f "$venv/.ready"
  echo "$variant" > "$venv/.variant"
  say "installing $(grep -c '^[a-z].*==' "$lock") packages into $venv ($variant; some minutes when new)"
  new_venv "$venv"
  packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  for record in "$packages"/*.dist-info; do # pip writes RECORD last: without it, pip was interrupted there
    [ -f "$record/RECORD" ] || rm -rf "$record"
  done
  quietly "$venv/bin/python" -m pip install "${pip_options[@]}" --no-build-isolation -r "$lock"
  echo "$PWD" > "$packages/leonardo.pth"
  imports="leonardo.hooks, leonardo.sandbox.drivers"
  for package in torch transformers deepspeed ray vllm; do
    if grep -qE "^$package(\[.*\])?==" "$lock"; then imports="$package, $imports"; fi
  done
  DS_ACCELERATOR=$([ "$variant" = cpu ] && echo cpu || echo cuda) quietly "$venv/bin/python" -c "import $imports"
  printf '%s' "$fingerprint" > "$venv/.ready"
  say "ready after $((SECONDS - started)) s, $(du -sh "$venv" | cut -f1) ($variant, $venv)"
  ;;
wheels)
  [ -n "$wheels" ] || fail "name the folder: make upstream-wheels WHEELS=..."
  mkdir -p "$wheels"
  scratch=$(mktemp -d)
  trap 'rm -rf "$log" "$bootstrap" "$scratch"' EXIT
  new_venv "$scratch"
  say "downloading $(grep -c '^[a-z].*==' "$lock") packages into $wheels ($variant)"
  quietly "$scratch/bin/python" -m pip download "${pip_options[@]}" --no-build-isolation -d "$wheels" -r "$lock"
  say "done after $((SECONDS - started)) s, $(du -sh "$wheels" | cut -f1)"
  ;;
lock)
  scratch=$(mktemp -d)
  trap 'rm -rf "$log" "$bootstrap" "$scratch"' EXIT
  find_python
  quietly "$python" -m venv "$scratch"
  quietly "$scratch/bin/python" -m pip install --disable-pip-version-check uv
  for variant in cpu cuda; do
    lock=launch/environments/upstream-$variant.txt
    if [ -n "${FRESH:-}" ] || [ ! -f "$lock" ]; then
      "$python" tools/upstream-versions.py upstream/training/open-instruct/uv.lock > "$lock" || fail "make upstream first"
    fi
    quietly "$scratch/bin/uv" pip compile "launch/environments/upstream-$variant.in" -o "$lock" --generate-hashes \
      --override "launch/environments/upstream-$variant.overrides" --python-version 3.12 \
      --python-platform x86_64-manylinux_2_28 --no-annotate --custom-compile-command "make lock-upstream-env"
    say "$lock: $(grep -c '^[a-z].*==' "$lock") packages"
  done
  ;;
*) fail "no command $command: install, wheels or lock" ;;
esac
