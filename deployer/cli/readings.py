"""A line now and then while files are read to the last byte, so that nobody waits before a silent screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deployer.cli.display import out
from deployer.push.pace import amount, left

FIRST = 2.0  # seconds; what is read faster is not worth a line
EVERY = 5.0  # seconds between two lines


def _print(line: str) -> None:
    out.print(line, markup=False, style="dim")


@dataclass
class Readings:
    """Called with each count (deployer.plan.reading)."""

    say: Callable[[str], None] = _print
    clock: Callable[[], float] = time.monotonic
    _what: str = ""
    _begun: tuple[float, int] = (0.0, 0)  # when, at how many bytes
    _due: float = field(default=0.0)

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self.clock()
        if what != self._what:
            self._what, self._begun, self._due = what, (now, done), now + FIRST
        then, at = self._begun
        if now >= self._due and done > at:
            self._due = now + EVERY
            rate = (done - at) / (now - then)
            self.say(
                f"reading {what}: {amount(done)} of {amount(total)}, {amount(int(rate))}/s, {left(total - done, rate)}"
            )
