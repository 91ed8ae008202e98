"""Results on the host, one file per cell, named after all that decides its numbers: measured once, not again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from shlex import quote

from deployer.bench.arms import Arm
from deployer.bench.model import Cell, Conditions
from deployer.plan.layout import Layout
from deployer.transport.base import Transport


@dataclass(frozen=True)
class Store:
    """ROOT/state/bench/<release>-<arm>-<prompts>-t<temperature>-c<concurrency>-r<round>-<digest>.json."""

    transport: Transport
    layout: Layout
    release: str
    arms: Mapping[str, Arm]

    def key(self, cell: Conditions) -> str:
        """Of the release, the arm's files and all conditions: another engine, option or prompt is another cell."""
        parts = (self.release, self.arms[cell.arm].files.digest, cell.model_dump_json())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def name(self, cell: Conditions) -> str:
        """The cell's file: readable in front, the key at the end."""
        words = (self.release, cell.arm, cell.prompts, f"t{cell.temperature}", f"c{cell.concurrency}", f"r{cell.round}")
        readable = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in "-".join(words))
        return f"{readable[:120]}-{self.key(cell)}.json"

    @property
    def folder(self) -> str:
        return f"{self.layout.state}/bench"

    def read(self, cells: Iterable[Conditions]) -> tuple[Cell, ...]:
        """Those that are there. One damaged by hand is not: it is measured again."""
        names = "".join(f"{self.name(cell)}\n" for cell in cells)
        command = f"cd {quote(self.folder)} 2>/dev/null && xargs -r cat 2>/dev/null; true"
        lines = self.transport.run(command, sudo=True, stdin=names.encode()).stdout.splitlines()
        return tuple(cell for line in lines if (cell := _cell(line)) is not None)

    def write(self, cell: Cell) -> None:
        """Keeps one."""
        self.transport.run(f"umask 022; mkdir -p {quote(self.folder)}", sudo=True)
        data = f"{cell.model_dump_json()}\n".encode()
        self.transport.write(data, f"{self.folder}/{self.name(cell.conditions)}", sudo=True)


def _cell(line: str) -> Cell | None:
    try:
        return Cell.model_validate_json(line)
    except ValueError:
        return None
