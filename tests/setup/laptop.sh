#!/usr/bin/env bash
# Builds the laptop's environment: the deployer with its tools, from a hashed lock; neither torch nor vLLM. usage: laptop.sh VENV
set -euo pipefail
venv=$(realpath -m "${1:?usage: laptop.sh VENV}")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
stamp=$(cat "$here/requirements.txt" "$root/pyproject.toml" "${BASH_SOURCE[0]}" <("$python" --version) | sha256sum | cut -d' ' -f1)
[ "$(cat "$venv/.laptop-stamp" 2>/dev/null)" != "$stamp" ] || exit 0
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "laptop: $python is $("$python" --version); Python 3.11 or newer is needed, PYTHON=... names another" >&2
  exit 1
}
echo "laptop: building $venv"
[ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input install -q)
"${pip[@]}" --no-deps --require-hashes -r "$here/requirements.txt"
"${pip[@]}" --no-deps --no-build-isolation -e "$root"
echo "$stamp" >"$venv/.laptop-stamp"
