"""Free space and inodes of the file systems that folders are on, or will be on."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from deployer.transport.base import Transport

COMMAND = (
    'for p in {PATHS}; do while [ ! -e "$p" ]; do p=$(dirname "$p"); done; df -P -B1 "$p" && df -P -i "$p" || exit 1;'
    ' echo "options=$(findmnt -n -o OPTIONS -T "$p" 2>/dev/null)"; done'
)


@dataclass(frozen=True)
class Disk:
    """In bytes and inodes. File systems that make inodes as needed report 0 of 0: then `inodes_free` is None.

    `options` are those that it is mounted with: ro, noexec ...
    """

    mount: str
    size: int
    free: int
    inodes_free: int | None
    options: frozenset[str] = frozenset()

    def __str__(self) -> str:
        inodes = "" if self.inodes_free is None else f", {self.inodes_free} inodes"
        return f"{self.mount}: {self.free / 2**30:.1f} of {self.size / 2**30:.1f} GiB free{inodes}"


def command(*paths: str) -> str:
    """The remote command for `paths`, which need not exist yet."""
    return COMMAND.replace("{PATHS}", " ".join(shlex.quote(path) for path in paths))


def parse(text: str) -> tuple[Disk, ...]:
    """Reads the two tables of df and the options, of one path after the other."""
    lines = [line for line in text.splitlines() if not line.startswith("Filesystem")]
    return tuple(_disk(*lines[start : start + 3]) for start in range(0, len(lines) - 2, 3))


def _disk(space_line: str, inodes_line: str, options: str) -> Disk:
    space, inodes = space_line.split(None, 5), inodes_line.split(None, 5)
    return Disk(
        mount=space[5],
        size=int(space[1]),
        free=int(space[3]),
        inodes_free=int(inodes[3]) if inodes[1].isdigit() and int(inodes[1]) else None,
        options=frozenset(options.removeprefix("options=").split(",")) - {""},
    )


def read(transport: Transport, path: str) -> Disk:
    return read_all(transport, path)[0]


def read_all(transport: Transport, *paths: str) -> tuple[Disk, ...]:
    """One disk per path, in one command."""
    return parse(transport.run(command(*paths)).stdout)
