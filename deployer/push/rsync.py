"""rsync over the same resolved way as everything else. Never with -u: a newer time is no proof of right contents."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from typing import IO

from deployer.errors import TransferError
from deployer.plan.step import Progress
from deployer.transport.base import Transport
from deployer.transport.faults import LineBroken

STALL = 60  # seconds without a byte
BROKEN = frozenset({10, 12, 30, 35, 255})  # rsync's exit codes for socket, protocol stream, timeouts; ssh's own
_AMOUNT = re.compile(rb"^\s*([\d,]+)\s+\d+%")


def usable(transport: Transport) -> bool:
    """Both ends have rsync, and the laptop has ssh."""
    here = shutil.which("rsync") and shutil.which("ssh")
    return bool(here and transport.openssh) and transport.run("command -v rsync", check=False).ok


def send(
    transport: Transport,
    sources: list[str],
    remote: str,
    options: list[str],
    *,
    total: int,
    progress: Progress,
    start: int = 0,
) -> None:
    """Copies `sources` to `remote` as root; progress counts from `start` to `total` bytes. Raises TransferError."""
    assert transport.openssh is not None
    *shell, host = transport.openssh
    sudo = [] if transport.run("id -u").stdout.strip() == "0" else ["--rsync-path", "sudo -n rsync"]
    command = ["rsync", "--protect-args", "--info=progress2", "--no-inc-recursive", f"--timeout={STALL}"]
    command += ["-e", shlex.join(shell), *sudo, *options, "--", *sources, f"{host}:{remote}"]
    # Its own process group: Ctrl-C reaches us first, and we end it with its children.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            for done in _amounts(process.stdout):
                progress.bytes(min(start + done, total), total)
            assert process.stderr is not None
            said = process.stderr.read().decode(errors="replace").strip()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
    if process.returncode:
        kind = LineBroken if process.returncode in BROKEN else TransferError
        raise kind(f"rsync failed with {process.returncode}: {said[-400:]}", where=f"{transport.name}:{remote}")


def _amounts(output: IO[bytes]) -> Iterator[int]:
    """The byte counts that --info=progress2 writes, separated by carriage returns."""
    pending = b""
    while chunk := os.read(output.fileno(), 4096):
        *lines, pending = (pending + chunk).replace(b"\n", b"\r").split(b"\r")
        for line in lines:
            if match := _AMOUNT.match(line):
                yield int(match[1].replace(b",", b""))


def mode_options() -> list[str]:
    """Modes that the service's account can read, whatever they are here."""
    return ["--perms", "--chmod=Du=rwx,Dgo=rx,Fu=rw,Fgo=r"]
