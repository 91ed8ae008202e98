"""What a file on the laptop holds, read once: its SHA-256, and the regions that are nothing but zeros.

The result is remembered by path, device, inode, size and both times, so that a large target is read once.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.checkpoint.remote_zeros import add_pages
from deployer.plan import reading

BLOCK = 1 << 22


@dataclass(frozen=True)
class Content:
    """`zeros` are the [begin, end) of runs of whole zero pages, in bytes from the file's beginning."""

    sha256: str
    zeros: tuple[tuple[int, int], ...]


def read(path: Path) -> Content:
    """Reads the whole file, unless it was read before and has not changed since."""
    status = path.stat()
    key = ":".join(
        str(part)
        for part in (
            path.resolve(),
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,  # an mtime can be set back, this cannot
        )
    )
    known = _remembered()
    if key not in known:
        content = scan(path)
        known[key] = [content.sha256, content.zeros]
        _remember(known)
        return content
    reading.tell(path.name, status.st_size, status.st_size)
    sha256, zeros = known[key]
    return Content(sha256, tuple((begin, end) for begin, end in zeros))


def scan(path: Path) -> Content:
    """Reads the whole file."""
    sha, runs, position, size = hashlib.sha256(), list[tuple[int, int]](), 0, path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            sha.update(block)
            add_pages(block, position, runs)
            position += len(block)
            reading.tell(path.name, position, size)
    return Content(sha.hexdigest(), tuple(runs))


def _file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ddtree-deploy" / "contents.json"


def _remembered() -> dict[str, Any]:
    with suppress(OSError, ValueError):
        known: dict[str, Any] = json.loads(_file().read_text())
        return known
    return {}


def _remember(known: dict[str, Any]) -> None:
    """Best effort: without the cache everything works, slower."""
    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        temporary = _file().with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(known))
        os.replace(temporary, _file())
