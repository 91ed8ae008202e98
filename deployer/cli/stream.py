"""stdout and stderr that may lose their reader: a pipe that was closed, a terminal that is gone.

A deployment goes on without: it would be cut between two steps by nothing but a line that nobody reads. What only shows
something ends.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Literal, cast

from deployer.errors import DeployError, Exit

Name = Literal["stdout", "stderr"]


class Unread(DeployError):
    """Whoever read the output has gone, and showing it was all there was to do."""

    exit_code = Exit.INTERRUPTED


class Stream(io.TextIOBase):
    """The process's stdout or stderr, whichever object that is at the time of writing.

    While it is `needed`, losing its reader raises Unread; else nothing happens.
    """

    def __init__(self, name: Name, *, needed: bool) -> None:
        self.begin(name, needed=needed)

    def begin(self, name: Name, *, needed: bool) -> None:
        """As if it had just been opened."""
        self.name, self.needed, self._lost = name, needed, False

    @property
    def real(self) -> IO[str]:
        """The stream itself, without what rich puts in front of it while something is live."""
        stream = getattr(sys, self.name)
        return cast(IO[str], getattr(stream, "rich_proxied_file", stream))

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
        if not self._lost:
            try:
                act()
            except OSError:  # EPIPE of a pipe, EIO of a terminal
                self._lost = True
                self._drop()
        if self._lost and self.needed:
            raise Unread(
                "nobody reads the output any more", where=self.name, remedy="read it to its end, or send it to a file"
            )

    def _drop(self) -> None:
        """What is still buffered must not raise once more when the process ends."""
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.real.fileno())
