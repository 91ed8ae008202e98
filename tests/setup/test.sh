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
declare -A running
logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$logs"' EXIT

verdict() { # name, exit code, seconds
  if [ "$2" -eq 0 ]; then summary+=("ok      $1  $3 s"); else
    failed+=("$1")
    summary+=("FAILED  $1  $3 s")
  fi
}
part() { # name, then the command
  local name=$1 began=$SECONDS code=0
  shift
  printf '\n== %s\n' "$name"
  "$@" || code=$?
  verdict "$name" "$code" $((SECONDS - began))
}
beside() { # like part, while others run: what it prints waits for `joined`
  local name=$1
  shift
  (
    began=$SECONDS
    "$@" >"$logs/$name" 2>&1
    code=$?
    echo $((SECONDS - began)) >"$logs/$name.seconds"
    exit $code
  ) &
  running[$name]=$!
}
joined() { # name of a part that was begun with `beside`
  local code=0
  wait "${running[$1]}" || code=$?
  printf '\n== %s\n' "$1"
  cat "$logs/$1"
  verdict "$1" "$code" "$(<"$logs/$1.seconds")"
}
must() { "$@" || {
  echo "test: ${*} failed, so nothing after it can run" >&2
  exit 1
}; }
# These have clocks in them, sshd, systemd and two busy processors. One that fails is asked once more, and is named at the
# end with what it said; many such are a fault of their own.
on_laptop() {
  build/venv/bin/python "${pytest[@]}" --reruns 1 --reruns-delay 5 --rerun-show-tracebacks "$@" | tee "$logs/said.$BASHPID"
}
in_engine() { build/engine/bin/python "${pytest[@]}" "$@"; }

must tests/setup/packages.sh
must tests/setup/laptop.sh build/venv
tests/setup/report_tools.sh
part "ruff" build/venv/bin/ruff check .
part "mypy --strict" build/venv/bin/mypy
beside "deployer, on this machine" on_laptop tests/deployer -m "not lab and not engine and ($select)"
must tests/engine_cpu/install.sh build/engine
must tests/setup/pairs.sh
# No clock decides anything in these, so they take what the others leave of the processors, to the end.
beside "trees in the engine" nice -n 19 build/engine/bin/python "${pytest[@]}" tests/ext -m "engine and ($select)"
joined "deployer, on this machine"
lab=yes
why=$(tests/lab/lab.sh check 2>&1) || lab=
[ -z "$lab" ] || beside "staging box" on_laptop tests/lab -m "$select"
[ -z "$lab" ] || beside "wheels for the staging box" build/venv/bin/python -m deployer.install.wheelhouse build/wheelhouse
beside "models from the hub" on_laptop tests/deployer -m "engine and ($select)"
part "algorithm and kernels, interpreted" in_engine tests/ext -m "not engine and ($select)"
part "pairs" in_engine tests/pairs -m "$select"
joined "models from the hub"
[ -z "$lab" ] || joined "staging box"
[ -z "$lab" ] || joined "wheels for the staging box"
if [ -n "$lab" ]; then
  part "deployments to the staging box" on_laptop tests/e2e -m "$select"
else
  printf '\n== left out: everything on the staging box\n%s\n' "$why"
  summary+=("left out: the staging box (see above)")
fi
joined "trees in the engine"

mapfile -t unsteady < <(cat "$logs"/said.* 2>/dev/null | sed -n 's/^RERUN //p' | sort -u)
printf '\n'
printf '%s\n' "${summary[@]}"
[ ${#unsteady[@]} -eq 0 ] || printf 'asked twice: %s\n' "${unsteady[@]}"
[ ${#unsteady[@]} -le 3 ] || failed+=("${#unsteady[@]} tests were asked twice")
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[*]}" >&2
  exit 1
fi
