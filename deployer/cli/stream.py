"""stdout and stderr that may be closed from the start, lose their reader (a pipe that was closed, a terminal that is gone),
or take no more (a full disk).

A deployment goes on without: it would be cut between two steps by nothing but a line that nobody reads. What only shows
something ends.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Literal, cast

from deployer.errors import DeployError, Exit, UsageError

Name = Literal["stdout", "stderr"]


class Unread(DeployError):
    """Whoever read the output has gone, and showing it was all there was to do."""

    exit_code = Exit.INTERRUPTED


class Unwritable(UsageError):
    """The output takes no more, and showing it was all there was to do."""


def open_all() -> None:
    """Opens what the process was started without as /dev/null: else the next files would take its numbers, and what
    children print would go into them.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def lost(name: Name, error: OSError) -> Unread | Unwritable:
    """What `error`, met in writing to it, means. What is still buffered is dropped."""
    _drop(_real(name))
    if error.errno in (errno.EPIPE, errno.EIO):  # of a pipe, of a terminal
        return Unread("nobody reads the output any more", where=name, remedy="read it to its end, or send it to a file")
    what = f"the output cannot be written: {error.strerror or error}"
    return Unwritable(what, where=name, remedy="make room, or send it elsewhere")


def _real(name: Name) -> IO[str]:
    """The stream itself, without what rich puts in front of it while something is live."""
    stream = getattr(sys, name)
    return cast(IO[str], getattr(stream, "rich_proxied_file", stream))


def _drop(stream: IO[str]) -> None:
    """What is still buffered must not raise once more when the process ends."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class Stream(io.TextIOBase):
    """The process's stdout or stderr, whichever object that is at the time of writing.

    While it is `needed`, losing it raises Unread or Unwritable; else the latter is said once on stderr, and that is all.
    """

    def __init__(self, name: Name, *, needed: bool) -> None:
        self.begin(name, needed=needed)

    def begin(self, name: Name, *, needed: bool) -> None:
        """As if it had just been opened."""
        self.name, self.needed = name, needed
        self._lost: Unread | Unwritable | None = None

    @property
    def full(self) -> bool:
        """Whether something could not be written that somebody waits for."""
        return isinstance(self._lost, Unwritable)

    @property
    def real(self) -> IO[str]:
        return _real(self.name)

    def write(self, text: str) -> int:
        self._unless_lost(lambda: self.real.write(text))
        return len(text)

    def flush(self) -> None:
        self._unless_lost(self.real.flush)

    def isatty(self) -> bool:
        return self.real.isatty()

    def fileno(self) -> int:
        return self.real.fileno()

    def _unless_lost(self, act: Callable[[], object]) -> None:
        if self._lost is None:
            try:
                act()
            except OSError as error:
                self._lost = lost(self.name, error)
                if self.full and not self.needed and self.name == "stdout":
                    with suppress(OSError):
                        print(f"error: {self._lost}", file=sys.stderr)
        if self._lost is not None and self.needed:
            raise self._lost
