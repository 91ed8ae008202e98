"""One file to the host: to NAME.part, continued where it broke off, checked by SHA-256, and only then named."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from deployer.errors import DeployError, TransferError
from deployer.facts import disk
from deployer.plan.step import Progress
from deployer.push import digest, rsync
from deployer.push.remote import DAMAGED
from deployer.transport.base import Transport
from deployer.transport.faults import LineBroken

ATTEMPTS = 4
STALL = 60.0  # seconds without a byte
ROOM = 1 << 20  # bytes; a disk with less is full


@dataclass(frozen=True)
class Sending:
    """A file on the laptop and the absolute path it shall have on the host."""

    source: Path
    sha256: str
    remote: str

    @property
    def part(self) -> str:
        return f"{self.remote}.part"

    @property
    def size(self) -> int:
        return self.source.stat().st_size


def send(transport: Transport, sending: Sending, progress: Progress, *, by_rsync: bool) -> None:
    """Sends one file and publishes it. A broken line is tried again from where it broke;
    raises TransferError, .part kept.
    """

    def say_so(state: RetryCallState) -> None:
        progress.say(f"{str(state.outcome.exception() if state.outcome else '').splitlines()[0]}; continuing")

    _make_folder(transport, sending.remote)
    for attempt in Retrying(
        retry=retry_if_exception_type(LineBroken),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(min=0.5, max=8),
        before_sleep=say_so,
        reraise=True,
    ):
        with attempt:
            start = offset(transport, sending)
            if start:
                progress.say(f"{sending.source.name}: continuing at {start} of {sending.size} bytes")
            _transfer(transport, sending, start, progress, by_rsync)
            _publish(transport, sending)


def offset(transport: Transport, sending: Sending) -> int:
    """How many bytes of .part are good: all if they equal the file's beginning, else none, and it is removed."""
    part = shlex.quote(sending.part)
    said = transport.run(f"stat -c %s {part} 2>/dev/null || echo 0", sudo=True).stdout
    length = int(said.strip())
    if length == 0:
        return 0
    if length <= sending.size:
        prefix = digest.helper(transport, "prefix", sending.part, str(length), check=True).stdout.strip()
        if prefix == digest.of_prefix(sending.source, length):
            return length
    transport.run(f"rm -f {part}", sudo=True)
    return 0


def _make_folder(transport: Transport, remote: str) -> None:
    folder = shlex.quote(remote.rpartition("/")[0])
    transport.run(f"umask 022; mkdir -p {folder}", sudo=True)


def _transfer(transport: Transport, sending: Sending, start: int, progress: Progress, by_rsync: bool) -> None:
    try:
        if by_rsync:
            # --append is safe: the prefix was compared a moment ago.
            options = ["--append", "--inplace", *rsync.mode_options()]
            source = [str(sending.source)]
            rsync.send(transport, source, sending.part, options, total=sending.size, progress=progress, start=start)
        else:
            _by_channel(transport, sending, start, progress)
    except TransferError as error:
        raise _full(transport, sending) or error from error


def _by_channel(transport: Transport, sending: Sending, start: int, progress: Progress) -> None:
    done = start

    def sent(count: int) -> None:
        nonlocal done
        done += count
        progress.bytes(done, sending.size)

    with sending.source.open("rb") as source:
        source.seek(start)
        command = f"umask 022; cat >>{shlex.quote(sending.part)}"
        result = transport.feed(command, source, sudo=True, stall=STALL, sent=sent)
    if not result.ok:
        raise TransferError(f"writing failed: {result.stderr.strip()}", where=f"{transport.name}:{sending.part}")


def _full(transport: Transport, sending: Sending) -> TransferError | None:
    """The error that says so when the disk is full; tools report only a failure."""
    try:
        room = disk.read(transport, sending.remote)
    except DeployError:
        return None
    if room.free > ROOM and room.inodes_free != 0:
        return None
    return TransferError(
        f"the disk is full while sending {sending.source.name}: {room}",
        where=f"{transport.name}:{sending.part}",
        remedy="make room and run the same command: what arrived is kept and continued",
    )


def _publish(transport: Transport, sending: Sending) -> None:
    result = digest.helper(transport, "publish", sending.part, sending.remote, sending.sha256, check=False)
    if result.returncode == DAMAGED:
        raise TransferError(
            f"{sending.source.name} arrived damaged: {result.stderr.strip()}",
            where=f"{transport.name}:{sending.remote}",
            remedy="run it again; if it changed here while it was sent, wait until its writer is done",
        )
    if not result.ok:
        raise TransferError(f"publishing failed: {result.stderr.strip()}", where=f"{transport.name}:{sending.remote}")
