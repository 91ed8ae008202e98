"""All facts of one host, read in one go: what `check` judges."""

from __future__ import annotations

from dataclasses import dataclass

from deployer.checkpoint import profiles
from deployer.checkpoint.profiles import Profile
from deployer.checkpoint.validate import validated
from deployer.errors import DeployError
from deployer.facts import disk, gpu, host, ports, service, target
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.transport.base import Transport


@dataclass(frozen=True)
class Drafter:
    """The laptop's side: the profile, and what is wrong with the checkpoint (None when it fits)."""

    profile: Profile
    parameters: int
    size: int
    failure: DeployError | None = None


@dataclass(frozen=True)
class Facts:
    """One host at one moment. `root_disk` is the file system of the inventory's root, `shm` that of /dev/shm."""

    host: host.Host
    root_disk: disk.Disk
    shm: disk.Disk
    gpus: gpu.Gpus
    port_holder: ports.Holder | None
    service: service.ServiceState
    target: target.Target | None
    drafter: Drafter


def gather(inventory: Inventory, transport: Transport) -> Facts:
    """Reads everything; changes nothing. What needs root is left out when the account has none: `host` says so."""
    layout = Layout.of(inventory)
    machine = host.read(transport, inventory.install.python)
    push = inventory.target.push
    here = target.read_here(push) if push else None
    return Facts(
        host=machine,
        root_disk=disk.read(transport, inventory.root),
        shm=disk.read(transport, "/dev/shm"),
        gpus=gpu.read(transport),
        port_holder=ports.read(transport, inventory.serve.port) if machine.is_root else None,
        service=service.read(transport, layout),
        target=here if push or not machine.is_root else target.read(transport, inventory.target.path),
        drafter=read_drafter(inventory),
    )


def read_drafter(inventory: Inventory) -> Drafter:
    """Validates the checkpoint on the laptop. Raises UsageError for a bad profile only."""
    profile = profiles.load(inventory.drafter.profile)
    try:
        header = validated(inventory.drafter.file, profile)
    except DeployError as error:
        return Drafter(profile, 0, 0, error)
    return Drafter(profile, header.parameters, header.size)
