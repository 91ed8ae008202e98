"""Arms that are loaded at the same time on one GPU: they measure when all are loaded, one at a time, cell after cell."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Loaded(Protocol):
    """What of an arm's spec is read here."""

    @property
    def place(self) -> int: ...
    @property
    def turns(self) -> str: ...
    @property
    def together(self) -> int: ...


@dataclass(frozen=True)
class Turns:
    """A folder with a mark for every arm that is loaded or has failed, and the lock of the one that measures. None: alone."""

    folder: Path | None
    place: int
    count: int

    @classmethod
    def of(cls, spec: Loaded) -> Turns:
        return cls(Path(spec.turns) if spec.turns else None, spec.place, spec.together)

    def mark(self) -> None:
        """This arm need not be waited for."""
        if self.folder:
            (self.folder / f"loaded {self.place}").touch()

    def wait_for_all(self) -> None:
        """Returns when every arm is loaded, or has failed: whoever started the arm marks it then."""
        self.mark()
        while self.folder and len(list(self.folder.glob("loaded *"))) < self.count:
            time.sleep(0.2)

    @contextmanager
    def mine(self) -> Iterator[None]:
        """While it lasts no other arm measures."""
        if not self.folder:
            yield
            return
        with (self.folder / "turn").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
