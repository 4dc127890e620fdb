#!/bin/bash
# Fetch the upstream submodule at the pinned commit, sparsely. The optional argument is a mirror or another checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
pin=$(git ls-files -s upstream | awk '{print $2}')
source=${1:-$(git config -f .gitmodules submodule.upstream.url)}
[ -n "$pin" ] || { echo "upstream: no gitlink in the index; this is not a whole checkout" >&2; exit 2; }

at_pin() { [ "$(git -C upstream rev-parse -q --verify HEAD 2>&1)" = "$pin" ] && [ -f upstream/training/open-instruct/pyproject.toml ]; }
if [ -e upstream/.git ] && at_pin; then
  echo "upstream: at ${pin:0:8} already"
  exit 0
fi
if [ -n "$(ls -A upstream 2> /dev/null)" ] && [ ! -e upstream/.git ]; then
  echo "upstream: the folder holds files that are not a checkout; move them away" >&2
  exit 2
fi

# Build beside it and rename, so that a broken fetch leaves nothing that looks like a checkout.
new=$(mktemp -d -p . .upstream.XXXXXX)
trap 'rm -rf "$new"' EXIT
{
  if [ -d "$source" ]; then
    git clone -q --no-checkout "$source" "$new" # links the objects; a mirror may lack files that are not checked out
  else
    git init -q "$new"
    git -C "$new" remote add origin "$source"
    git -C "$new" fetch -q --depth 1 --filter=blob:none origin "$pin"
  fi
  # Everything else in the repository is evaluation files, some hundreds of megabytes of them.
  git -C "$new" config core.sparseCheckout true
  printf '%s\n' /training/open-instruct/ /rl_data/ '!/training/open-instruct/docs/' > "$new/.git/info/sparse-checkout"
  git -C "$new" checkout -q --detach "$pin"
} > "$new.log" 2>&1 || { tail -n 3 "$new.log" >&2; rm -f "$new.log"
  echo "upstream: $source could not be fetched. Name a mirror or another checkout: make upstream UPSTREAM=..." >&2; exit 3; }
rm -rf "$new.log" upstream
mv "$new" upstream
at_pin || { echo "upstream: the checkout is not at $pin" >&2; exit 3; }
echo "upstream: at ${pin:0:8}, $(du -sh --exclude=.git upstream | cut -f1) checked out"
