"""Plans: what would be done and why, decided before anything is done.

Facts and inventory go in, a Plan comes out; building one has no effect. A step without an action is already
satisfied, and
its reason says why: applying the same plan twice does nothing the second time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Step:
    """One thing to do on one host, or a statement that there is nothing to do.

    `verb` is the room it belongs to (push, install, serve ...), `title` what the operator reads, `reason` why it is
    needed or not.
    `action` is None when nothing is to be done; else it is called with a sink for progress lines.
    """

    verb: str
    title: str
    reason: str
    action: Callable[[Progress], None] | None = None

    @property
    def needed(self) -> bool:
        return self.action is not None


class Progress(Protocol):
    """Where a running step reports to: a line of text, or a number of bytes done."""

    def say(self, line: str) -> None:
        """Shows one line beneath the running step."""
        ...

    def bytes(self, done: int, total: int) -> None:
        """Shows a transfer's progress, both in bytes."""
        ...


@dataclass(frozen=True)
class Plan:
    """The steps of one verb on one host, in order."""

    host: str
    steps: tuple[Step, ...]

    @property
    def pending(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.needed)

    def __add__(self, other: Plan) -> Plan:
        if other.host != self.host:
            raise ValueError(f"plans of two hosts cannot be joined: {self.host} and {other.host}")
        return Plan(self.host, self.steps + other.steps)
