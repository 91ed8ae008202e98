"""Facts of a host that is fit for production, put together from recordings and examples; tests change one place each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from material import recorded

from deployer.checkpoint import profiles
from deployer.facts import confinement, disk, gpu, host, service
from deployer.facts.disk import Disk
from deployer.facts.finding import Finding
from deployer.facts.gather import Drafter, Facts
from deployer.facts.judge import judge
from deployer.facts.room import Room
from deployer.facts.target import Target
from deployer.inventory.load import load
from deployer.inventory.model import Inventory

PRODUCTION = load("ct129")
STAGING = load("staging")
DRAFTER_BYTES = 3_460_000_000


def disks(root: Disk, **others: Any) -> Room:
    """A room whose file systems are all `root`, but for `others`."""
    room = Room(root, root, root, root, disk.parse(recorded("disk_shm.txt"))[0], models=DRAFTER_BYTES)
    return replace(room, **others)


def fit(**changes: Any) -> Facts:
    """A host that is fit for production, but for `changes`."""
    facts = Facts(
        host=host.parse(recorded("host_ct129_with_compiler.txt")),
        room=disks(disk.parse(recorded("disk_overlay.txt"))[0]),
        gpus=gpu.parse(recorded("gpu_a6000_pair_idle.txt")),
        confinement=confinement.parse(recorded("unit_good.txt")),
        skew=0.2,
        port_holder=None,
        service=service.parse(recorded("service_absent.txt")),
        target=Target("qwen3_5", 64, 5120, 248320),
        drafter=Drafter(profiles.load("z-lab/Qwen3.6-27B-DFlash"), 1_730_000_000, DRAFTER_BYTES),
    )
    return replace(facts, **changes)


def subjects(facts: Facts, inventory: Inventory = PRODUCTION) -> set[str]:
    return {finding.subject for finding in judge(facts, inventory)}


def finding(facts: Facts, subject: str, inventory: Inventory = PRODUCTION) -> Finding:
    """The only finding on `subject`."""
    found = [finding for finding in judge(facts, inventory) if finding.subject == subject]
    assert len(found) == 1, f"{subject}: {found}"
    return found[0]
