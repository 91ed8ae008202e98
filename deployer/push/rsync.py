"""rsync for folders of many files, over the same resolved way as everything else. Never with -u: a newer time is no
proof of right contents.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from deployer.errors import TransferError
from deployer.plan.step import Progress
from deployer.push.openssh import ending_with_us
from deployer.transport.base import Transport
from deployer.transport.faults import LineBroken

STALL = 60  # seconds without a byte
BROKEN = frozenset({10, 12, 30, 35, 255})  # rsync's exit codes for socket, protocol stream, timeouts; ssh's own
OLDEST_HERE = (3, 1, 0)  # --info=progress2
OLDEST_THERE = (3, 0, 0)  # --protect-args
_AMOUNT = re.compile(rb"^\s*([\d,]+)\s+\d+%")
_VERSION = re.compile(r"^rsync\s+version\s+v?(\d+(?:\.\d+)*)", re.MULTILINE)


@dataclass(frozen=True)
class Rsync:
    """What `rsync --version` says. macOS has either an rsync of 2006 or openrsync, which calls itself compatible."""

    version: tuple[int, ...]
    openrsync: bool = False

    @classmethod
    def parse(cls, text: str) -> Rsync | None:
        """None when it is not rsync that spoke."""
        match = _VERSION.search(text)
        if "openrsync" in text:
            return cls(version=(), openrsync=True)
        return cls(tuple(int(number) for number in match[1].split("."))) if match else None

    def __str__(self) -> str:
        return "openrsync" if self.openrsync else f"rsync {'.'.join(map(str, self.version))}"

    def at_least(self, version: tuple[int, ...]) -> bool:
        return not self.openrsync and self.version >= version


def usable(transport: Transport) -> bool:
    """Whether both ends have an rsync that can what is needed, and this machine an ssh for it."""
    if transport.openssh is None or not shutil.which("ssh"):
        return False
    here = _here()
    if here is None or not here.at_least(OLDEST_HERE):
        return False
    there = _there(transport)
    return there is not None and there.at_least(OLDEST_THERE)


def _here() -> Rsync | None:
    if not shutil.which("rsync"):
        return None
    said = subprocess.run(["rsync", "--version"], capture_output=True, text=True, check=False, timeout=30)
    return Rsync.parse(said.stdout + said.stderr)


def _there(transport: Transport) -> Rsync | None:
    said = transport.run("rsync --version", check=False)
    return Rsync.parse(said.stdout + said.stderr)


def send(
    transport: Transport,
    sources: list[str],
    remote: str,
    options: list[str],
    *,
    total: int,
    progress: Progress,
) -> None:
    """Copies `sources` to `remote` as root; progress counts to `total` bytes. Raises TransferError."""
    assert transport.openssh is not None
    *shell, host = transport.openssh
    sudo = [] if transport.run("id -u").stdout.strip() == "0" else ["--rsync-path", "sudo -n rsync"]
    command = ["rsync", "--protect-args", "--info=progress2", "--no-inc-recursive", f"--timeout={STALL}"]
    command += ["-e", shlex.join(shell), *sudo, *options, "--", *sources, f"{host}:{remote}"]
    # Its own process group: Ctrl-C reaches us first, and we end it with its children.
    with subprocess.Popen(
        [*ending_with_us(), *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            for done in _amounts(process.stdout, f"{transport.name}:{remote}"):
                progress.bytes(min(done, total), total)
            process.wait()
        finally:
            # Its ssh too: on a dead line it would live on for a minute and keep stderr open.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        assert process.stderr is not None
        said = process.stderr.read().decode(errors="replace").strip()
    if process.returncode:
        kind = LineBroken if process.returncode in BROKEN else TransferError
        what = f"rsync failed with {process.returncode}: {said[-400:]}"
        raise kind(what, where=f"{transport.name}:{remote}", remedy="run the same command again: what arrived is kept")


def _amounts(output: IO[bytes], where: str) -> Iterator[int]:
    """The byte counts that --info=progress2 writes, separated by carriage returns.

    Raises LineBroken after a silence: on a line that is dead but open, rsync's own --timeout does not always end it.
    """
    pending = b""
    while select.select([output], [], [], STALL)[0]:
        chunk = os.read(output.fileno(), 4096)
        if not chunk:
            return
        *lines, pending = (pending + chunk).replace(b"\n", b"\r").split(b"\r")
        for line in lines:
            if match := _AMOUNT.match(line):
                yield int(match[1].replace(b",", b""))
    raise LineBroken(f"stalled, nothing moved for {STALL:g} s", where=where, remedy="run the same command again")


def mode_options() -> list[str]:
    """Modes that the service's account can read, whatever they are here."""
    return ["--perms", "--chmod=Du=rwx,Dgo=rx,Fu=rw,Fgo=r"]
