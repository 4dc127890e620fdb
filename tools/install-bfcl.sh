#!/bin/bash
# Install the locked bfcl-eval into a folder of its own: no dependencies, hashes checked, whole or absent. Idempotent.
# Usage: tools/install-bfcl.sh PYTHON FOLDER [WHEELS]   (WHEELS: a folder with the three wheels, where there is no network)
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 folder=$2 wheels=${3:-}
lock=launch/environments/bfcl.txt

if cmp -s "$lock" "$folder/lock.txt"; then
  echo "bfcl: installed already in $folder"
  exit 0
fi
mkdir -p "$(dirname "$folder")"
new=$(mktemp -d -p "$(dirname "$folder")" .bfcl.XXXXXX)
trap 'rm -rf "$new" "$new.log"' EXIT
"$python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes --only-binary :all: --no-compile \
  ${wheels:+--no-index --find-links "$wheels"} --target "$new" -r "$lock" > "$new.log" 2>&1 || {
  tail -n 3 "$new.log" >&2
  echo "bfcl: cannot be installed; without a network, give a folder with the wheels: make bfcl WHEELS=..." >&2
  exit 3
}
cp "$lock" "$new/lock.txt"
chmod 755 "$new"
rm -rf "$folder"
mv "$new" "$folder"
echo "bfcl: $(sed -n 's/^\(bfcl-eval==[^ ]*\).*/\1/p' "$lock") in $folder, $(du -sh "$folder" | cut -f1)"
