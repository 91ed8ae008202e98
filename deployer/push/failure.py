"""Why writing on the host failed, in the operator's words. Tools say it in passing, or only that something failed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deployer.errors import DeployError, TransferError
from deployer.facts import disk
from deployer.facts.disk import Disk
from deployer.transport.base import Transport

ROOM = 1 << 20  # bytes; a disk with less is full
KEPT = "run the same command: what arrived is kept and continued"


class WriteError(TransferError):
    """The host could not write, or what it has is not what was sent: trying again by itself brings nothing."""


@dataclass(frozen=True)
class Cause:
    """One of Linux's error numbers, as rsync, Python and coreutils write it, and what it means."""

    number: int
    text: str
    what: str
    remedy: str

    def named_in(self, said: str) -> bool:
        return self.text in said or bool(re.search(rf"\({self.number}\)|\[Errno {self.number}\]", said))


FULL = Cause(28, "No space left on device", "the disk is full", "make room")
QUOTA = Cause(
    122, "Disk quota exceeded", "the disk quota is used up", "raise it (quota -v, zfs get quota) or make room"
)
READ_ONLY = Cause(
    30, "Read-only file system", "the file system is read-only", "see why (dmesg, findmnt), mount it read-write"
)
BROKEN = Cause(5, "Input/output error", "the disk reports errors", "see dmesg and the disk's own report (smartctl -a)")
LARGE = Cause(27, "File too large", "the file is too large for the file system or a limit", "see ulimit -f and findmnt")
NO_INODES = Cause(28, FULL.text, "no inodes are left", "remove what consists of many small files (df -i shows where)")
CAUSES = (FULL, QUOTA, READ_ONLY, BROKEN, LARGE)


def cause(said: str, room: Disk | None) -> Cause | None:
    """The cause that `said` names, or that df shows when it names none. No inodes and no room are one error number."""
    named = next((cause for cause in CAUSES if cause.named_in(said)), None)
    if room is None:
        return named
    if named in {None, FULL} and room.inodes_free == 0:
        return NO_INODES
    return FULL if named is None and room.free <= ROOM else named


def explained(transport: Transport, path: str, name: str, said: str) -> WriteError | None:
    """The error for a failure to write `path` while sending `name`, with df as it is now; None when it is another."""
    try:
        room = disk.read(transport, path)
    except DeployError:
        room = None
    found = cause(said, room)
    if found is None:
        return None
    return WriteError(
        f"{found.what} while sending {name}{f': {room}' if room else ''}",
        where=f"{transport.name}:{path}",
        remedy=f"{found.remedy}; then {KEPT}",
    )
