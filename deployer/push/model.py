"""A model as it is pushed: its files with their digests, and the immutable folder they make on the host."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from deployer.checkpoint import model_folder, profiles
from deployer.checkpoint.config import as_json, config_from
from deployer.checkpoint.validate import examined
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.push import digest

WEIGHTS = "model.safetensors"  # of a drafter, whatever its file is called on the laptop
SUMS = ".sha256sums"  # hidden: no file of a model can have this name


@dataclass(frozen=True)
class Blob:
    """One file of a model: its name in the folder, its bytes, and where it is on the laptop; None for what the host
    fetches itself.
    """

    name: str
    sha256: str
    size: int
    source: Path | None = None

    @classmethod
    def here(cls, name: str, source: Path) -> Blob:
        """Of a file on the laptop."""
        return cls(name, digest.of_file(source), source.stat().st_size, source)


@dataclass(frozen=True)
class Model:
    """Files of the laptop and texts made here, under the name `slug`. Equal contents give an equal `identifier`."""

    kind: str
    slug: str
    blobs: tuple[Blob, ...]
    texts: dict[str, bytes] = field(default_factory=dict)

    @property
    def manifest(self) -> dict[str, str]:
        """File name -> SHA-256 of everything in the folder but the list of these."""
        made = {name: hashlib.sha256(text).hexdigest() for name, text in self.texts.items()}
        return {blob.name: blob.sha256 for blob in self.blobs} | made

    @property
    def sums(self) -> str:
        """The manifest as `sha256sum --check` reads it."""
        return "".join(_sum_line(name, sha) for name, sha in sorted(self.manifest.items()))

    @property
    def identifier(self) -> str:
        listed = json.dumps(self.manifest, sort_keys=True).encode()
        return f"{self.slug}-{hashlib.sha256(listed).hexdigest()[:12]}"

    def folder(self, layout: Layout) -> str:
        return f"{layout.models}/{self.identifier}"


def _sum_line(name: str, sha: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    mark = "\\" if escaped != name else ""
    return f"{mark}{sha}  {escaped}\n"


def slug(text: str) -> str:
    """A profile's or folder's name as part of a path: lower case, dashes for all else."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


def drafter_slug(inventory: Inventory) -> str:
    reference = inventory.drafter.profile
    return slug(Path(reference).stem if reference.endswith(".toml") else reference.rpartition("/")[2])


def target_slug(inventory: Inventory) -> str:
    return slug(inventory.target.path.rpartition("/")[2])


def drafter(inventory: Inventory) -> Model | None:
    """The drafter, when it is the laptop's: the bare checkpoint, looked at to the last byte, and the config.json made of
    it. Raises PreflightError if it does not fit.
    """
    file, profile = inventory.drafter.file, profiles.load(inventory.drafter.profile)
    if file is None:
        return None
    config = as_json(config_from(examined(file, profile), profile))
    weights = Blob.here(WEIGHTS, file)
    return Model(kind="drafter", slug=drafter_slug(inventory), blobs=(weights,), texts={"config.json": config})


def target(inventory: Inventory) -> Model | None:
    """The target, when the inventory says that it is pushed; every file of the folder but hidden ones.

    Raises PreflightError when it is not a whole model.
    """
    folder = inventory.target.push
    if folder is None:
        return None
    files = model_folder.validated(folder)
    blobs = tuple(Blob.here(file.name, file.source) for file in files)
    return Model(kind="target", slug=target_slug(inventory), blobs=blobs)
