"""Where a file holds nothing but zeros. For the laptop's files and, sent there like push's remote.py, for a host's: standard
library only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

FAILED = 74
PAGE = 4096  # bytes; what file systems and downloaders leave unwritten comes in whole pages
BLOCK = 1 << 22
ZEROS = bytes(PAGE)


def add_pages(block: bytes, position: int, runs: list[tuple[int, int]]) -> None:
    """Adds the whole zero pages, and a last part of one, of a block at `position` of its file to `runs`, the [begin, end)
    found before it; what adjoins is one run. Blocks begin at multiples of PAGE.
    """
    for at in range(0, len(block), PAGE):
        if block.startswith(ZEROS, at) or (len(block) - at < PAGE and not any(block[at:])):
            begin, end = position + at, position + min(at + PAGE, len(block))
            if runs and runs[-1][1] == begin:
                begin = runs.pop()[0]
            runs.append((begin, end))


def pages(path: str) -> list[tuple[int, int]]:
    """The runs of zero pages of a file, all of which is read."""
    runs, position = list[tuple[int, int]](), 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            add_pages(block, position, runs)
            position += len(block)
    return runs


def empty(path: str, spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Of each [begin, end) of a file whether it has bytes and all are zero; nothing else is read."""
    found = []
    with open(path, "rb") as file:
        for begin, end in spans:
            file.seek(begin)
            found.append(begin < end and not any(file.read(end - begin)))
    return found


def main(verb: str, *words: Any) -> None:
    """Prints what one verb found, as JSON; words as its function takes them."""
    verbs: dict[str, Callable[..., object]] = {"pages": pages, "empty": empty}
    try:
        print(json.dumps(verbs[verb](*words)))
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)
