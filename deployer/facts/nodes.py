"""NVIDIA's device nodes in /dev: what is there under each name, with its numbers and its owner."""

from __future__ import annotations

from dataclasses import dataclass

# stat gives the numbers in hexadecimal. nvidia-caps matters to cards cut into instances only.
COMMAND = (
    "echo '[nodes]'; for n in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools; do"
    " stat -c '%n|%F|%t|%T|%a|%U:%G' \"$n\" 2>/dev/null; done"
)
NEEDED = ("/dev/nvidiactl", "/dev/nvidia-uvm")


@dataclass(frozen=True)
class Node:
    """One entry. `kind` is stat's word; anything but a character device was left by a bind mount without a source."""

    path: str
    kind: str
    major: int
    minor: int
    mode: str
    owner: str

    @property
    def usable(self) -> bool:
        return self.kind == "character special file"


def parse(lines: list[str]) -> tuple[Node, ...]:
    """Reads the lines under [nodes]."""
    rows = [line.split("|") for line in lines]
    return tuple(Node(r[0], r[1], int(r[2], 16), int(r[3], 16), r[4], r[5]) for r in rows if len(r) == 6)
