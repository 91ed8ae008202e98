"""Signals held back while something short must not be cut in two: taking a lock, giving it back, writing its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP take effect after the block, once. Elsewhere than in the main thread: no effect.

    Only for blocks that end by themselves: a second Ctrl-C waits as well.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, remember) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: a handler that was not set from Python cannot be put back by it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if arrived:
            signal.raise_signal(arrived[0])
