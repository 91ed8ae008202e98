#!/usr/bin/env bash
# Makes the trained tiny pairs that are not there yet: build/pairs/KIND/{target,drafter}.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
for kind in ${PAIR_KINDS:-dense hybrid hybrid128}; do
  build/engine/bin/python -m tests.pairs.make "$kind" build/pairs
done
