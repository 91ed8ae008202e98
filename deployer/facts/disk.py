"""Free space and inodes of the file system that a folder is on, or will be on."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from deployer.transport.base import Transport

COMMAND = 'p={PATH}; while [ ! -e "$p" ]; do p=$(dirname "$p"); done; df -P -B1 "$p" && df -P -i "$p"'


@dataclass(frozen=True)
class Disk:
    """In bytes and inodes. File systems that make inodes as needed report 0 of 0: then `inodes_free` is None."""

    mount: str
    size: int
    free: int
    inodes_free: int | None

    def __str__(self) -> str:
        inodes = "" if self.inodes_free is None else f", {self.inodes_free} inodes"
        return f"{self.mount}: {self.free / 2**30:.1f} of {self.size / 2**30:.1f} GiB free{inodes}"


def command(path: str) -> str:
    """The remote command for `path`, which need not exist yet."""
    return COMMAND.replace("{PATH}", shlex.quote(path))


def parse(text: str) -> Disk:
    """Reads the two tables of df."""
    space, inodes = (line.split(None, 5) for line in text.splitlines() if not line.startswith("Filesystem"))
    return Disk(
        mount=space[5],
        size=int(space[1]),
        free=int(space[3]),
        inodes_free=int(inodes[3]) if inodes[1].isdigit() and int(inodes[1]) else None,
    )


def read(transport: Transport, path: str) -> Disk:
    return parse(transport.run(command(path)).stdout)
