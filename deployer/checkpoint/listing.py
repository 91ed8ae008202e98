"""The files of a model's folder on the laptop, links followed; what is not a plain, whole file is refused by name."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deployer.errors import PreflightError

# What downloaders leave beside or in place of a file while it is not complete.
UNFINISHED = (".incomplete", ".part", ".partial", ".aria2", ".crdownload", ".download", ".tmp")
MAX_NAME = 240  # bytes of one name: room for what is appended to it while it is on its way


@dataclass(frozen=True)
class Member:
    """One file: its POSIX path in the folder, and where it is on the laptop, the end of all links."""

    name: str
    source: Path

    @property
    def size(self) -> int:
        return self.source.stat().st_size


def members(folder: Path) -> tuple[Member, ...]:
    """Every file beneath `folder` but hidden ones, by name. A link counts as what it points to, a folder's too.

    Raises PreflightError for dangling links, loops, sockets and the like, unfinished downloads, unusable names.
    """
    found = tuple(sorted(_walk(folder, "", (_identity(folder),)), key=lambda member: member.name))
    for member in found:
        if member.name.endswith(UNFINISHED):
            raise _refusal(folder, member.name, "is an unfinished download", "finish or remove it")
    return found


def _walk(folder: Path, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[Member]:
    for entry in os.scandir(folder):
        if entry.name.startswith("."):
            continue
        name, path = prefix + entry.name, Path(entry.path)
        _check_name(folder, name)
        try:
            mode = path.stat().st_mode
        except OSError as error:
            what = f"is a link to {os.readlink(path)!r}" if path.is_symlink() else "cannot be read"
            raise _refusal(folder, name, f"{what}: {error.strerror}", "download the model again, or mend it") from error
        if stat.S_ISDIR(mode):
            identity = _identity(path)
            if identity in above:
                raise _refusal(folder, name, "is a link to a folder that it lies in", "remove the link")
            yield from _walk(path, f"{name}/", (*above, identity))
        elif stat.S_ISREG(mode):
            yield Member(name, path.resolve())
        else:
            raise _refusal(folder, name, "is neither a file nor a folder", "remove it")


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _check_name(folder: Path, name: str) -> None:
    try:
        length = len(name.rpartition("/")[2].encode())
    except UnicodeEncodeError as error:
        raise _refusal(folder, ascii(name), "has a name that is not UTF-8", "rename it") from error
    if length > MAX_NAME:
        raise _refusal(folder, name, f"has a name of {length} bytes, more than {MAX_NAME}", "rename it")


def _refusal(folder: Path, name: str, what: str, remedy: str) -> PreflightError:
    return PreflightError(f"{name!r} in the model's folder {what}", where=str(folder), remedy=remedy)
