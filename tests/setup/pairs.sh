#!/usr/bin/env bash
# Makes the trained tiny pairs that are not there yet: build/pairs/KIND/{target,drafter}.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
kinds=(${PAIR_KINDS:-dense hybrid hybrid128})
# Two at a time: each trains in one thread, and two processors are all that can be counted on.
printf '%s\n' "${kinds[@]}" | xargs -P 2 -I KIND build/engine/bin/python -m tests.pairs.make KIND build/pairs
