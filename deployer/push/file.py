"""One file to the host: to NAME.part, continued where it broke off, checked by SHA-256, and only then named."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from deployer.plan.step import Progress
from deployer.push import digest, failure, openssh
from deployer.push.pace import limited
from deployer.push.patience import Patience, attempts
from deployer.push.remote import DAMAGED
from deployer.transport.base import Result, Transport

STALL = 60.0  # seconds without a byte


@dataclass(frozen=True)
class Sending:
    """A file on the laptop and the absolute path it shall have on the host, whose `memory` keeps its SHA-256, if named."""

    source: Path
    sha256: str
    remote: str
    memory: str = ""

    @property
    def part(self) -> str:
        return f"{self.remote}.part"

    @property
    def size(self) -> int:
        return self.source.stat().st_size


def send(
    transport: Transport, sending: Sending, progress: Progress, *, by_ssh: bool, limit: float | None = None
) -> None:
    """Sends one file and publishes it, at `limit` MB/s at most. A broken line is tried again from where it broke;
    raises TransferError, .part kept.
    """
    patience = Patience()
    for attempt in attempts(transport, patience, progress):
        with attempt:
            start = _begun(transport, sending, patience)
            if start:
                progress.say(f"{sending.source.name}: continuing at {start} of {sending.size} bytes")
            publish(transport, sending, _transfer(transport, sending, start, progress, by_ssh, limit))


def offset(transport: Transport, sending: Sending) -> int:
    """How many bytes of .part are good: all if they equal the file's beginning, else none, and it is removed.

    Makes the folder, if there is none.
    """
    part, folder = shlex.quote(sending.part), shlex.quote(sending.remote.rpartition("/")[0])
    command = f"export LC_ALL=C; umask 022; mkdir -p {folder} && {{ stat -c %s {part} 2>/dev/null || echo 0; }}"
    result = transport.run(command, sudo=True, check=False)
    _check(transport, sending, result, "making its folder")
    length = int(result.stdout.strip())
    if length == 0:
        return 0
    if length <= sending.size:
        prefix = digest.helper(transport, "prefix", sending.part, length, check=True).stdout.strip()
        if prefix == digest.of_prefix(sending.source, length):
            return length
    transport.run(f"rm -f {part}", sudo=True)
    return 0


def _begun(transport: Transport, sending: Sending, patience: Patience) -> int:
    """Where this attempt starts."""
    start = patience.reached(partial(offset, transport, sending))
    patience.found(start)
    return start


def _transfer(
    transport: Transport, sending: Sending, start: int, progress: Progress, by_ssh: bool, limit: float | None
) -> str:
    """Sends the file from byte `start` on. The SHA-256 of what arrived, if it came in one go, else nothing."""
    done = start

    def sent(count: int) -> None:
        nonlocal done
        done += count
        progress.bytes(done, sending.size)

    with sending.source.open("rb", buffering=0) as opened:
        opened.seek(start)
        source, command = cast(BinaryIO, opened), digest.reader("receive", sending.part, start)
        if by_ssh:
            at = partial(progress.bytes, total=sending.size)
            sudo = not openssh.lent(transport, sending.part)
            result = openssh.feed(transport, command, source, sudo=sudo, limit=limit, stall=STALL, at=at)
        else:
            result = transport.feed(command, limited(source, limit), sudo=True, stall=STALL, sent=sent)
    _check(transport, sending, result, "writing")
    return result.stdout.strip()


def publish(transport: Transport, sending: Sending, found: str = "") -> None:
    """Gives a complete .part its name, if its SHA-256 is right; `found` is that, if it is known. Raises WriteError."""
    words = (sending.part, sending.remote, sending.sha256, found, sending.memory)
    result = digest.helper(transport, "publish", *words, check=False)
    _check(transport, sending, result, "publishing")


def _check(transport: Transport, sending: Sending, result: Result, doing: str) -> None:
    """Raises the WriteError for a command that failed on the way of this file."""
    check(transport, result, sending.source.name, sending.part, doing)


def check(transport: Transport, result: Result, name: str, path: str, doing: str) -> None:
    """Raises WriteError, as clear as can be, when a command that brings `name` to `path` has failed."""
    said = result.stderr.strip()
    if result.returncode == DAMAGED:
        raise failure.WriteError(
            f"{name} arrived damaged: {said}",
            where=f"{transport.name}:{path}",
            remedy="run it again; if it changed here while it was sent, wait until its writer is done",
        )
    if not result.ok:
        raise failure.explained(transport, path, name, said) or failure.WriteError(
            f"{doing} failed for {name}: {said or f'exit code {result.returncode}'}",
            where=f"{transport.name}:{path}",
            remedy=failure.KEPT,
        )
