"""Whether the program that took a host's lock still runs, as far as this machine can know: it keeps a file locked for
as long as it lives, and the system lets go of that however it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def shown(token: str) -> Iterator[None]:
    """This program is at work, and whoever asks for `token` on this machine can see that. The sign outlives it until it
    is removed. Best effort: where no file can be written, nobody can know.
    """
    path = _file(token)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = path.open("w")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ended(token: str) -> bool:
    """True only for a program of this machine that is no longer at work and has left its sign."""
    with suppress(OSError), _file(token).open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def remove(token: str) -> None:
    """The host's lock has been given back or taken over: nobody has to ask again."""
    with suppress(OSError):
        _file(token).unlink()


def _file(token: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ddtree-deploy" / "running" / token
