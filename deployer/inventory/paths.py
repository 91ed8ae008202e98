"""Paths in inventory files: which machine they are on, and what a relative one is relative to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, StringConstraints, ValidationInfo


def on_laptop(path: Path, info: ValidationInfo) -> Path:
    """Makes `path` absolute: `~` is the user's home, a relative path starts at the inventory file's folder.

    The folder comes in as the validation context's "folder"; without one (a model built in code) the path stays as it
    is.
    """
    path = path.expanduser()
    folder = (info.context or {}).get("folder")
    return path if folder is None or path.is_absolute() else Path(folder, path).resolve()


def profile_reference(value: str, info: ValidationInfo) -> str:
    """A profile is a name (owner/model) or, when it ends in .toml, a file on the laptop."""
    return str(on_laptop(Path(value), info)) if value.endswith(".toml") else value


LaptopPath = Annotated[Path, AfterValidator(on_laptop)]
ProfileReference = Annotated[str, AfterValidator(profile_reference)]
# No blanks, quotes or dot-dot: these paths become parts of remote commands and of systemd units.
HostPath = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9_+@=:,-][A-Za-z0-9_.+@=:,-]*)+$")]
# Account and unit names, as useradd and systemd take them.
Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]{0,30}$")]
# Never starting with a dash: ssh would read it as an option.
SshWord = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_\[][A-Za-z0-9_.:@%,\[\]-]*$")]
