"""Where a deployment writes, and how much of what it would write is there already."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from deployer.facts import disk
from deployer.facts.disk import Disk
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.transport.base import Transport

_PUSHED = "pushed="


@dataclass(frozen=True)
class Room:
    """The file systems that are written to, and what the two ends have of the models, in bytes.

    `root` is that of the inventory's root, `cache` that of the service's cache, `temporary` that of /tmp, `pip` that
    of root's ~/.cache; `pushed` is what lies under the root's models already, `models` the laptop's.
    """

    root: Disk
    cache: Disk
    temporary: Disk
    pip: Disk
    shm: Disk
    pushed: int = 0
    models: int = 0


def command(layout: Layout) -> str:
    """One command for all of it."""
    paths = (layout.root, layout.cache_dir, "/tmp", "/root/.cache", "/dev/shm")
    return f'{disk.command(*paths)}; echo "{_PUSHED}$(du -sb {shlex.quote(layout.models)} 2>/dev/null | cut -f 1)"'


def parse(text: str, *, models: int = 0) -> Room:
    """Reads the answer; `models` is the laptop's side, in bytes."""
    tables, _, pushed = text.partition(_PUSHED)
    root, cache, temporary, pip, shm = disk.parse(tables)
    return Room(root, cache, temporary, pip, shm, int(pushed.strip() or 0), models)


def read(transport: Transport, inventory: Inventory, *, drafter: int, sudo: bool) -> Room:
    """`drafter` is its size in bytes; `sudo` sees folders that only root may enter."""
    text = transport.run(command(Layout.of(inventory)), sudo=sudo).stdout
    return parse(text, models=drafter + _size(inventory.target.push))


def _size(folder: Path | None) -> int:
    """Bytes of the files in a folder of the laptop; 0 where there is none."""
    found = folder.rglob("*") if folder is not None and folder.is_dir() else ()
    return sum(file.stat().st_size for file in found if file.is_file())
