"""Where the answer goes: looked at before anything is measured, and written whole, with what was there kept."""

from __future__ import annotations

import os
from pathlib import Path

from deployer.errors import UsageError
from deployer.plan.step import Progress
from deployer.serve import tuned
from deployer.serve.tuned import Tuned


def check(path: Path) -> None:
    """Raises UsageError when nothing could be written there."""
    if path.exists() and not path.is_file():
        raise UsageError("it is there and no file", where=str(path), remedy="--file FILE, or {host}.tuned.toml in it")
    if not path.parent.is_dir():
        raise UsageError("there is no such folder", where=str(path.parent), remedy="make it, or --file FILE elsewhere")
    if not os.access(path.parent, os.W_OK):
        remedy = "see its owner and mode (ls -ld), or --file FILE elsewhere"
        raise UsageError("nothing can be written there", where=str(path.parent), remedy=remedy)


def taken(path: Path, what: str) -> UsageError:
    """What is there may be replaced only if that is wished."""
    remedy = f"--overwrite keeps it as {_kept(path).name} and writes the new one; or --file FILE"
    return UsageError(f"it is there and {what}", where=str(path), remedy=remedy)


def read(path: Path) -> Tuned | None:
    """What it says; None when it is not there or no file of this kind."""
    try:
        return tuned.read(path)
    except UsageError:
        return None


def write(path: Path, text: str, progress: Progress) -> None:
    """Under its name is the old or the new one, whole, whenever this is cut."""
    if path.is_file():
        kept = _kept(path)
        _put(kept, path.read_bytes())
        progress.say(f"what was there is {kept}")
    _put(path, text.encode())


def _put(path: Path, data: bytes) -> None:
    # Two hosts whose inventories name one file may be tuned at the same time.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _kept(path: Path) -> Path:
    """FILE.before; FILE.before-2 and so on where that is another one, from an earlier time."""
    number, kept = 1, path.with_name(f"{path.name}.before")
    while kept.exists() and not (kept.is_file() and kept.read_bytes() == path.read_bytes()):
        number += 1
        kept = path.with_name(f"{path.name}.before-{number}")
    return kept
