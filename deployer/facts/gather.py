"""All facts of one host, read in one go: what `check` judges."""

from __future__ import annotations

import time
from dataclasses import dataclass

from deployer.checkpoint import profiles
from deployer.checkpoint.profiles import Profile
from deployer.checkpoint.validate import validated
from deployer.errors import DeployError
from deployer.facts import confinement, gpu, host, ports, room, service, target
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.transport.base import Transport


@dataclass(frozen=True)
class Drafter:
    """The laptop's side: the profile, and what is wrong with the checkpoint (None when it fits). Of one that the host
    fetches `parameters` and `size` are 0.
    """

    profile: Profile
    parameters: int
    size: int
    failure: DeployError | None = None


@dataclass(frozen=True)
class Facts:
    """One host at one moment. `skew` is the host's clock minus this machine's in seconds, None when it was not told;
    `confinement` is None where systemd could not be asked.
    """

    host: host.Host
    room: room.Room
    gpus: gpu.Gpus
    confinement: confinement.Confinement | None
    skew: float | None
    port_holder: ports.Holder | None
    service: service.ServiceState
    target: target.Target | None
    drafter: Drafter


def gather(inventory: Inventory, transport: Transport) -> Facts:
    """Reads everything; changes nothing. What needs root is left out when the account has none: `host` says so."""
    layout = Layout.of(inventory)
    machine = host.read(transport, inventory.install.python)
    now = time.time()
    drafter = read_drafter(inventory)
    push = inventory.target.push
    here = target.read_here(push) if push else None
    return Facts(
        host=machine,
        room=room.read(transport, inventory, drafter=drafter.size, sudo=machine.is_root),
        gpus=gpu.read(transport, sudo=machine.is_root),
        confinement=confinement.read(transport, inventory) if machine.is_root else None,
        skew=None if machine.clock is None else machine.clock - now,
        port_holder=ports.read(transport, inventory.serve.port, sudo=machine.is_root),
        service=service.read(transport, layout),
        target=here if push or not machine.is_root else target.read(transport, inventory.target.path),
        drafter=drafter,
    )


def read_drafter(inventory: Inventory) -> Drafter:
    """Validates the checkpoint on the laptop, if it is there. Raises UsageError for a bad profile only."""
    profile, file = profiles.load(inventory.drafter.profile), inventory.drafter.file
    if file is None:
        return Drafter(profile, 0, 0)
    try:
        header = validated(file, profile)
    except DeployError as error:
        return Drafter(profile, 0, 0, error)
    return Drafter(profile, header.parameters, header.size)
