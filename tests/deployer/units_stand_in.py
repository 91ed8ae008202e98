"""Stand-ins for `systemd-run` and `systemctl` on a machine without systemd: transient units are processes of their own,
which outlive whoever started them.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

RUN = """#!/bin/sh
# A stand-in: --unit=NAME, then the command after the other options.
while [ "${1#--}" != "$1" ]; do
  case $1 in --unit=*) unit=${1#--unit=};; esac
  shift
done
setsid "$@" </dev/null >"$STANDIN_UNITS/$unit.log" 2>&1 &
echo $! >"$STANDIN_UNITS/$unit.pid"
"""
CTL = """#!/bin/sh
# A stand-in: is-active NAME.
pid=$(cat "$STANDIN_UNITS/$2.pid" 2>/dev/null) || { echo inactive; exit 3; }
case $(cut -d ' ' -f 3 "/proc/$pid/stat" 2>/dev/null) in
  ''|Z|X) echo inactive; exit 3;;
esac
echo active
"""


class Units:
    """The units that were started, by their files."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, programs = folder / "units", folder / "stand-ins"
        self.folder.mkdir()
        programs.mkdir()
        for name, text in (("systemd-run", RUN), ("systemctl", CTL)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        patch.setenv("STANDIN_UNITS", str(self.folder))
        patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    @property
    def pids(self) -> list[int]:
        return [int(path.read_text()) for path in self.folder.glob("*.pid")]

    def kill(self) -> None:
        """What `kill -9` and a power cut do to them."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
