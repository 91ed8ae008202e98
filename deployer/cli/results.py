"""Files that a verb writes for its user: whole or not at all, and refused before minutes of work rather than after."""

from __future__ import annotations

import os
from pathlib import Path

from deployer.cli.display import out
from deployer.errors import UsageError


def to_be_written(host: str, *files: Path | None) -> None:
    """UsageError if one of them could not be written now. {host} in a name is the host's; nothing is made."""
    for file in filter(None, files):
        path = named(file, host)
        if path.is_dir():
            raise UsageError("it is a folder", where=str(path), remedy="name a file in it")
        if not path.parent.is_dir():
            raise UsageError(
                "the results cannot be written: the folder is not there",
                where=str(path.parent),
                remedy=f"mkdir -p {path.parent}",
            )
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise UsageError(
                "the results cannot be written: the folder is not yours to write in",
                where=str(path.parent),
                remedy="name a file in a folder of yours",
            )


def write(file: Path, text: str, host: str) -> None:
    """Writes it whole or not at all, and says where. {host} in the name is the host's."""
    path = named(file, host)
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise UsageError(
            f"the results cannot be written: {error.strerror}", where=str(path), remedy="name a file that can be made"
        ) from error
    out.print(f"written: {path}", markup=False)


def named(file: Path, host: str) -> Path:
    return Path(str(file).replace("{host}", host))
