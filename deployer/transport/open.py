"""From an inventory to an open transport."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deployer.inventory.model import Inventory
from deployer.transport.base import Transport
from deployer.transport.local import LocalTransport
from deployer.transport.pct import PctTransport
from deployer.transport.ssh import SshTransport


@contextmanager
def opened(inventory: Inventory, *, local: bool = False) -> Iterator[Transport]:
    """The host's transport, connected, and closed at the end. `local` takes this machine in place of what [ssh] reaches:
    of the host, or of its Proxmox host where the inventory has [pct].
    """
    transport = _transport(inventory, local)
    try:
        transport.connect()
        yield transport
    finally:
        transport.close()


def _transport(inventory: Inventory, local: bool) -> PctTransport | SshTransport | LocalTransport:
    name = inventory.name if inventory.pct is None else inventory.ssh.host
    reached = LocalTransport(name) if local else SshTransport(inventory.ssh, name=name)
    return reached if inventory.pct is None else PctTransport(reached, inventory.pct, name=inventory.name)
