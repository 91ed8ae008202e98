"""A stand-in for a Proxmox host: pct, lxc-info and nsenter as programs on this machine, which is the container, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deployer.transport import pct

# Like Proxmox's, it passes exit codes on; unlike it, the container is this machine. LOG holds every word it was given.
PCT = r"""#!/bin/sh
printf '%s\n' "$@" >>"$LOG"
verb=$1 id=$2
[ "$id" = 129 ] || { echo "Configuration file 'nodes/x/lxc/$id.conf' does not exist" >&2; exit 2; }
state=$(cat "$STATE")
case $verb in
status) echo "status: $state" ;;
exec)
  [ "$state" = running ] || { echo "container '129' not running!" >&2; exit 255; }
  shift 3
  if [ -n "$ENDLESS" ]; then
    mkfifo "$ENDLESS/in"
    exec 3<&0
    (cat <&3; exec sleep 60) >"$ENDLESS/in" 2>/dev/null &
    echo $! >"$ENDLESS/pid"
    exec "$@" <"$ENDLESS/in"
  fi
  exec "$@" ;;
push)
  [ -z "$FULL" ] || { echo "write failed: No space left on device" >&2; exit 255; }
  [ "$5 $6" = "--perms 0600" ] || exit 255
  ( umask 077; cat "$3" >"$4" ) ;;
esac
"""
NSENTER = '#!/bin/sh\nshift 4\nexec "$@"\n'  # -t PID -n --


def put(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The programs in `folder`, found first; `state` in it is the container's."""
    folder.mkdir()
    for name, text in (("pct", PCT), ("nsenter", NSENTER), ("lxc-info", "#!/bin/sh\necho 7\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "state").write_text("running\n")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(folder / "log"))
    monkeypatch.setenv("STATE", str(folder / "state"))
    monkeypatch.setattr(pct, "SPOOL", str(folder))
    return folder
