"""Files that are read to the last byte before anything is done, on either end: whoever shows things is told how far it is.

A plan is built without a sink for progress, by every verb; a target of 54 GB takes minutes to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Watcher = Callable[[str, int, int], None]
"""What is read, and how many bytes of how many."""


@dataclass
class _Whole:
    """Several files as one reading."""

    what: str
    total: int
    before: int = 0
    name: str = ""
    size: int = 0


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_whole: ContextVar[_Whole | None] = ContextVar("whole", default=None)


@contextmanager
def watched(by: Watcher) -> Iterator[None]:
    """Within the block `by` is told."""
    token = _watcher.set(by)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def several(what: str, total: int) -> Iterator[None]:
    """Within the block the files that are read, one after the other, are counted as one reading of `total` bytes."""
    token = _whole.set(_Whole(what, total))
    try:
        yield
    finally:
        _whole.reset(token)


def tell(name: str, done: int, size: int) -> None:
    """So many bytes of a file were read."""
    watcher, whole = _watcher.get(), _whole.get()
    if watcher is None:
        return
    if whole is None:
        watcher(name, done, size)
        return
    if name != whole.name:
        whole.before += whole.size
        whole.name, whole.size = name, size
    watcher(whole.what, whole.before + done, whole.total)
