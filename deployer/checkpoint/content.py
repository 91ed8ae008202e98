"""What a file on the laptop holds, read once: its SHA-256, and the regions that are nothing but zeros.

The result is remembered by path, device, inode, size and both times, so that a large target is read once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.checkpoint.remote_zeros import add_pages
from deployer.plan import reading

BLOCK = 1 << 22
_SHA256 = re.compile("[0-9a-f]{64}")


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
        _remember({**known, key: content})
        return content
    reading.tell(path.name, status.st_size, status.st_size)
    return known[key]


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


def _remembered() -> dict[str, Content]:
    """By key. What cannot be made out is as if it had never been remembered."""
    with suppress(OSError, ValueError, RecursionError):
        known = json.loads(_file().read_text(encoding="utf-8"))
        read = {key: _made_out(entry) for key, entry in known.items()} if isinstance(known, dict) else {}
        return {key: content for key, content in read.items() if content is not None}
    return {}


def _made_out(entry: Any) -> Content | None:
    match entry:
        case [str(sha256), [*zeros]] if _SHA256.fullmatch(sha256) and all(map(_is_run, zeros)):
            return Content(sha256, tuple((begin, end) for begin, end in zeros))
    return None


def _is_run(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair)


def _remember(known: dict[str, Content]) -> None:
    """Best effort: without the cache everything works, slower."""
    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        temporary = _file().with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps({key: [content.sha256, content.zeros] for key, content in known.items()}))
        os.replace(temporary, _file())
