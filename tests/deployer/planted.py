"""A secret that the suite's inventories name, and the watch over where it turns up: nowhere but in root's own files."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

VARIABLE = "DDTREE_PLANTED_SECRET"
SECRET = "planted-0b9d6c2e5f31"
# A secret's file on the laptop, a deployment's environment on the host.
ALLOWED = ("api-key", "environment", ".env")
argv_leaks: list[str] = []


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    """Every command line that this process starts, whoever starts it."""
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system") and SECRET in _words(arguments[:2]):
        argv_leaks.append(f"{event}: {_words(arguments[:2])}")


def _words(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return " ".join(map(_words, value)) if isinstance(value, list | tuple) else str(value)


def watch_command_lines() -> None:
    """From now on; there is no way back, an audit hook stays."""
    sys.addaudithook(_watch)


def leaks(folder: Path) -> list[str]:
    """Files beneath `folder` that hold the secret and may not, or that others than their owner could read."""
    found = []
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file() or SECRET.encode() not in path.read_bytes():
            continue
        if not path.name.endswith(ALLOWED):
            found.append(str(path))
        elif stat.S_IMODE(path.stat().st_mode) & 0o077:
            found.append(f"{path} (mode {stat.S_IMODE(path.stat().st_mode):04o})")
    return found


def plant() -> None:
    """The laptop's environment has it."""
    os.environ[VARIABLE] = SECRET
