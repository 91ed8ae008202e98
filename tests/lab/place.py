"""Where one lab lives: its directory, its network namespace, the files in both."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .machine import LabError

CHECKOUT = Path(__file__).resolve().parents[2]
_PLAIN_PATH = re.compile(r"/[\w./+-]*", re.ASCII)
_NAMESPACE = re.compile(r"[a-z][a-z0-9-]{0,30}")
GUESTS = ("129", "130")  # the containers that kpro5 can run


@dataclass(frozen=True)
class Place:
    """The paths and the one name (network namespace, LXC container, cgroup) that belong to a lab."""

    root: Path
    base: Path
    namespace: str
    guests: tuple[str, ...] = GUESTS[:1]

    @property
    def run(self) -> Path:
        """What exists only while the lab is up: overlays, LXC's directory, logs."""
        return self.root / "run"

    @property
    def lxc(self) -> Path:
        return self.run / "lxc"

    @property
    def keys(self) -> Path:
        """Client key and host keys. They outlive `down`, as a machine's keys outlive a reinstall from backup."""
        return self.root / "keys"

    @property
    def client_key(self) -> Path:
        return self.keys / "client"

    @property
    def ssh_config(self) -> Path:
        return self.root / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.root / "known_hosts"

    @property
    def faults(self) -> Path:
        return self.root / "faults.json"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def netns(self) -> Path:
        return Path("/run/netns") / self.namespace

    def overlay(self, name: str) -> Path:
        return self.run / name

    def rootfs(self, name: str) -> Path:
        return self.overlay(name) / "rootfs"


def place(environ: Mapping[str, str] = os.environ) -> Place:
    """The lab that LAB_DIR, LAB_BASE and LAB_NS name.

    LAB_DIR defaults to build/lab of the checkout, LAB_BASE (the cached image, which labs share) to LAB_DIR/base,
    LAB_NS to a name derived from LAB_DIR, LAB_GUESTS (the containers in kpro5) to 129; it may be 129,130. Raises LabError
    for a path that LXC or overlayfs would misread.
    """
    root = Path(environ.get("LAB_DIR") or CHECKOUT / "build" / "lab").resolve()
    base = Path(environ.get("LAB_BASE") or root / "base").resolve()
    for path in (root, base):
        if not _PLAIN_PATH.fullmatch(str(path)):
            raise LabError(f"{path}: LXC and overlayfs misread blanks, commas and colons in paths; set LAB_DIR")
    namespace = environ.get("LAB_NS") or "lab-" + hashlib.sha256(str(root).encode()).hexdigest()[:8]
    if not _NAMESPACE.fullmatch(namespace):
        raise LabError(f"LAB_NS={namespace}: wants a letter, then at most 30 lower-case letters, digits and dashes")
    guests = tuple((environ.get("LAB_GUESTS") or GUESTS[0]).split(","))
    if guests not in (GUESTS[:1], GUESTS):
        raise LabError(f"LAB_GUESTS={','.join(guests)}: wants {GUESTS[0]} or {','.join(GUESTS)}")
    return Place(root, base, namespace, guests)
