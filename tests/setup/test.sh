#!/usr/bin/env bash
# `make test`: lint, types and every part of the suite, each in the environment it needs. FULL=1: the large numbers too.
# Without root or LXC the parts that need the staging box are left out, and one sentence says so.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root" || exit 1
failed=()
summary=()
select='not full'
[ -z "${FULL:-}" ] || select='full or not full'
pytest=(-m pytest -p no:cacheprovider)

part() { # name, then the command
  local name=$1 began=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  if "$@"; then summary+=("ok      $name  $((SECONDS - began)) s"); else
    failed+=("$name")
    summary+=("FAILED  $name  $((SECONDS - began)) s")
  fi
}
must() { "$@" || {
  echo "test: ${*} failed, so nothing after it can run" >&2
  exit 1
}; }

must tests/setup/packages.sh
must tests/setup/laptop.sh build/venv
part "ruff" build/venv/bin/ruff check .
part "mypy --strict" build/venv/bin/mypy
part "deployer, on this machine" build/venv/bin/python "${pytest[@]}" tests/deployer -m "not lab and ($select)"

must tests/engine_cpu/install.sh build/engine
[ -n "${FULL:-}" ] || export PAIR_KINDS="dense hybrid"
must tests/setup/pairs.sh
part "algorithm and kernels, interpreted" build/engine/bin/python "${pytest[@]}" tests/ext -m "not engine and ($select)"
part "pairs" build/engine/bin/python "${pytest[@]}" tests/pairs -m "$select"
part "trees in the engine" build/engine/bin/python "${pytest[@]}" tests/ext -m "engine and ($select)"

if why=$(tests/lab/lab.sh check 2>&1); then
  part "staging box" build/venv/bin/python "${pytest[@]}" tests/lab -m "$select"
  part "deployments to the staging box" build/venv/bin/python "${pytest[@]}" tests/e2e -m "$select"
else
  printf '\n== left out: everything on the staging box\n%s\n' "$why"
  summary+=("left out: the staging box (see above)")
fi

printf '\n'
printf '%s\n' "${summary[@]}"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[*]}" >&2
  exit 1
fi
