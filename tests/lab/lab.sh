#!/bin/sh
# The staging box from the shell; `lab.sh --help` lists the verbs. Needs nothing but the system's Python 3.11 and Debian packages.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 1
PYTHONPATH=$(dirname -- "$here") PYTHONDONTWRITEBYTECODE=1 exec python3 -m lab "$@"
