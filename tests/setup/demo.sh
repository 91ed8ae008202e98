#!/usr/bin/env bash
# The main job, end to end, on the staging box: one file on this machine becomes a tree-speculative service in CT129.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
began=$SECONDS
part() { printf '\n== %s  (%d s)\n' "$1" $((SECONDS - began)); }

part "what the machine needs"
tests/setup/packages.sh
tests/lab/lab.sh check || exit $?
tests/setup/laptop.sh build/venv
deploy=(build/venv/bin/ddtree-deploy)

part "the trained tiny pair (the engine's environment is built for it)"
tests/engine_cpu/install.sh build/engine
PAIR_KINDS=hybrid tests/setup/pairs.sh

part "the staging box: kpro5, and CT129 behind it"
tests/lab/lab.sh build
tests/lab/lab.sh up

part "ddtree-deploy up staging"
"${deploy[@]}" up staging

part "a completion, asked over the OpenAI API through a tunnel"
build/venv/bin/python tests/setup/ask.py staging

part "systemctl status ddtree-vllm, in CT129"
ssh -F build/lab/ssh_config ct129 systemctl status --no-pager --lines=5 ddtree-vllm || true

part "done"
cat <<END
The staging box stays up. Next, from this folder:
  source build/venv/bin/activate
  ddtree-deploy up staging          nothing to do, and why, in a few seconds
  ddtree-deploy status staging      acceptance length, trees, release
  ddtree-deploy smoke staging       what a CI calls against a box that is up
  ddtree-deploy logs staging -f
  ddtree-deploy tunnel staging      then: curl http://127.0.0.1:PORT/v1/models
  ddtree-deploy stop staging        ddtree-deploy uninstall staging
  ddtree-deploy up ct129 --plan     the production box, once inventory/ct129.toml is yours
  make clean                        stops the staging box and removes build/
END
