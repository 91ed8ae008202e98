"""How fast bytes go: a limit, and what is said of rate and remaining time."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

from deployer.plan.step import Progress

EVERY = 20.0  # seconds between two lines
SLICE = 0.25  # seconds' worth of bytes at most in one read, so that a slow line still moves


class Throttled(io.RawIOBase):
    """A file that is read at `rate` bytes a second at most, counted from the first read."""

    def __init__(
        self,
        source: BinaryIO,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self._source, self._rate, self._clock, self._sleep = source, rate, clock, sleep
        self._free = clock()  # when the next byte may go

    def read(self, size: int = -1) -> bytes:
        wait = self._free - self._clock()
        if wait > 0:
            self._sleep(wait)
        largest = max(1, int(self._rate * SLICE))
        data = self._source.read(largest if size < 0 else min(size, largest))
        # A pause is no credit: bytes that did not go then may not go faster later.
        self._free = max(self._free, self._clock()) + len(data) / self._rate
        return data

    def readable(self) -> bool:
        return True


def limited(source: BinaryIO, limit: float | None) -> BinaryIO:
    """`source`, read at `limit` MB/s (10^6 bytes) at most."""
    return source if limit is None else Throttled(source, limit * 1e6)  # type: ignore[return-value]


@dataclass
class Meter:
    """The progress of several files as one: bytes of all of them, and a line with rate and time left now and then."""

    sink: Progress
    total: int
    clock: Callable[[], float] = time.monotonic
    _before: int = 0
    _mark: tuple[float, int] | None = field(default=None)

    def next_file(self, before: int) -> None:
        """The bytes of the files so far; what the next one has from an earlier run is not taken for speed."""
        self._before, self._mark = before, None

    def say(self, line: str) -> None:
        self.sink.say(line)

    def bytes(self, done: int, total: int) -> None:
        now, overall = self.clock(), min(self._before + done, self.total)
        self.sink.bytes(overall, self.total)
        if self._mark is None:
            self._mark = (now, overall)
        then, at = self._mark
        if now - then >= EVERY and overall > at:
            rate = (overall - at) / (now - then)
            self.say(
                f"{amount(overall)} of {amount(self.total)}, {amount(int(rate))}/s, {left(self.total - overall, rate)}"
            )
            self._mark = (now, overall)


def left(count: int, rate: float) -> str:
    """How long `count` bytes still take at `rate` bytes a second."""
    minutes, seconds = divmod(round(count / rate), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min left"
    return f"{minutes} min {seconds:02} s left" if minutes else f"{seconds} s left"


def amount(size: int) -> str:
    """Bytes for people, in powers of ten as disks are sold."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size} bytes"
