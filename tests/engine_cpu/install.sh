#!/usr/bin/env bash
# Builds the test engine's environment: vLLM 0.32.0's CPU build from a hashed lock, pytest, the three local stand-ins, ddtree_ext.
# usage: install.sh VENV      About 2.5 minutes and 3.6 GB; a second call with the same inputs does nothing.
# Needs Python 3.11 (PYTHON=... names another) and a pip that can find torch==2.13.0+cpu.
set -euo pipefail
shopt -s inherit_errexit

venv=$(realpath -m "${1:?usage: install.sh VENV}")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
standins=(vllm_stub vllm_cpu_shim fake_triton_cpu)

inputs() { # every file the environment is made from; ddtree_ext is editable, so only its metadata counts
  printf '%s\n' "$here/install.sh" "$here/requirements.txt" "$here/requirements-test.txt"
  find "${standins[@]/#/$here/}" -type f -not -path '*/build/*' -not -name '*.pyc' -not -path '*.egg-info/*' | sort
  [ ! -f "$root/ddtree_ext/pyproject.toml" ] || printf '%s\n' "$root/ddtree_ext/pyproject.toml"
}
digest() { { "$python" --version; inputs | xargs -d '\n' sha256sum; } | sha256sum | cut -d' ' -f1; }

stamp=$(digest)
if [ "$(cat "$venv/.engine-stamp" 2>/dev/null)" = "$stamp" ]; then
  echo "engine: $venv is up to date"
  exit 0
fi

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
  echo "engine: the lock is for Python 3.11, and $python is $("$python" --version); set PYTHON to a Python 3.11" >&2
  exit 1
}
rm -f "$venv/.engine-stamp"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)

if ! "$venv/bin/python" -c 'from importlib.metadata import version; assert version("torch") == "2.13.0+cpu"' 2>/dev/null; then
  "${pip[@]}" download -q --no-deps -d "$venv/.torch" torch==2.13.0+cpu >"$venv/.torch.log" 2>&1 || {
    tail -n 2 "$venv/.torch.log" >&2
    echo "engine: pip finds no torch==2.13.0+cpu (PyTorch's CPU build, not on PyPI): point PIP_FIND_LINKS at a folder with its" \
      "cp311 wheel, or PIP_EXTRA_INDEX_URL at PyTorch's CPU wheel index, and run this again" >&2
    exit 1
  }
fi
find_torch=()
[ ! -d "$venv/.torch" ] || find_torch=(--find-links "$venv/.torch")
"${pip[@]}" install -q --no-deps --require-hashes "${find_torch[@]}" -r "$here/requirements.txt" -r "$here/requirements-test.txt"
rm -rf "$venv/.torch" "$venv/.torch.log"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "${standins[@]/#/$here/}" "$work/" # setuptools builds inside the source folder: keep ours clean
"${pip[@]}" install -q --no-deps --no-build-isolation --force-reinstall "${standins[@]/#/$work/}"
if [ -f "$root/ddtree_ext/pyproject.toml" ]; then
  "${pip[@]}" install -q --no-deps --no-build-isolation -e "$root/ddtree_ext"
else
  echo "engine: no ddtree_ext/pyproject.toml yet, so stock vLLM only" >&2
fi
"$venv/bin/python" -c 'import torchvision, triton.backends as t; assert "cpu" in t.backends'
probe='import torch; from vllm.platforms import current_platform as p; p.import_kernels(); torch.ops._C.init_cpu_memory_env'
said=$("$venv/bin/python" -c "$probe" 2>&1) || {
  grep -iE 'error|cannot open' <<<"$said" | tail -n 2 >&2
  echo "engine: vLLM's extension does not load; beyond Python's packages it links Debian's libnuma1" >&2
  exit 1
}
echo "$stamp" >"$venv/.engine-stamp"
echo "engine: $venv is ready"
