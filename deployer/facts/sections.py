"""The form in which the fact commands answer: several outputs in one, each under a line [name]."""

from __future__ import annotations

import re

_NAME = re.compile(r"\[(\w+)\]")


def sections(text: str) -> dict[str, list[str]]:
    """Name -> the lines under it, without blank ones. A name that comes twice keeps all its lines."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if name := _NAME.fullmatch(line):
            current = found.setdefault(name[1], [])
        elif line.strip():
            current.append(line.strip())
    return found


def pairs(lines: list[str]) -> dict[str, str]:
    """The key=value lines among `lines`."""
    return dict(line.partition("=")[::2] for line in lines if "=" in line)
