"""From an inventory to an open transport."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from deployer.inventory.model import Pct, Ssh
from deployer.transport.base import Transport
from deployer.transport.local import LocalTransport
from deployer.transport.pct import PctTransport
from deployer.transport.ssh import SshTransport


class Reachable(Protocol):
    """What an inventory file says about reaching its host."""

    @property
    def name(self) -> str: ...
    @property
    def ssh(self) -> Ssh: ...
    @property
    def pct(self) -> Pct | None: ...


@contextmanager
def opened(inventory: Reachable, *, local: bool = False) -> Iterator[Transport]:
    """The host's transport, connected, and closed at the end. `local` takes this machine in place of what [ssh] reaches:
    of the host, or of its Proxmox host where the inventory has [pct].
    """
    transport = _transport(inventory, local)
    try:
        transport.connect()
        yield transport
    finally:
        transport.close()


def _transport(inventory: Reachable, local: bool) -> PctTransport | SshTransport | LocalTransport:
    name = inventory.name if inventory.pct is None else inventory.ssh.host
    reached = LocalTransport(name) if local else SshTransport(inventory.ssh, name=name)
    return reached if inventory.pct is None else PctTransport(reached, inventory.pct, name=inventory.name)
