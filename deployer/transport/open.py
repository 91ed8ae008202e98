"""From an inventory to an open transport."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deployer.inventory.model import Inventory
from deployer.transport.base import Transport
from deployer.transport.local import LocalTransport
from deployer.transport.ssh import SshTransport


@contextmanager
def opened(inventory: Inventory, *, local: bool = False) -> Iterator[Transport]:
    """The host's transport, connected, and closed at the end. `local` takes this machine in place of the host."""
    if local:
        yield LocalTransport(inventory.name)
        return
    transport = SshTransport(inventory.ssh, name=inventory.name)
    try:
        transport.connect()
        yield transport
    finally:
        transport.close()
