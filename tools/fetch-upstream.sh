#!/bin/bash
# Fetch the upstream submodule at the pinned commit, sparsely. The optional argument is a mirror or another checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
pin=$(git ls-files -s upstream | awk '{print $2}')
source=${1:-$(git config -f .gitmodules submodule.upstream.url)}
fail() { echo "upstream: $*" >&2; exit 3; }
[ -n "$pin" ] || fail "no gitlink in the index; this is not a whole checkout"

if [ ! -e upstream/.git ]; then
  if [ -d "$source" ]; then
    # a clone of a folder links the objects that are there; a mirror may lack files that are not checked out here
    git clone -q --no-checkout "$source" upstream || fail "$source cannot be cloned"
  else
    git init -q upstream
  fi
fi
cd upstream
git config remote.origin.url "$source"
if [ "$(git rev-parse -q --verify HEAD)" = "$pin" ] && [ -f training/open-instruct/pyproject.toml ]; then
  echo "upstream: at ${pin:0:8} already"
  exit 0
fi
# Everything else in the repository is evaluation files, some hundreds of megabytes of them.
git config core.sparseCheckout true
printf '%s\n' /training/open-instruct/ /rl_data/ '!/training/open-instruct/docs/' > .git/info/sparse-checkout
git cat-file -e "$pin^{commit}" 2> /dev/null || git fetch -q --depth 1 --filter=blob:none origin "$pin" \
  || fail "$source could not be fetched. Name a mirror or another checkout: make upstream UPSTREAM=..."
git checkout -q --detach "$pin"
echo "upstream: at ${pin:0:8}, $(du -sh --exclude=.git . | cut -f1) checked out"
