"""The machines on the way to a host, each as a host of its own: a Proxmox host knows what its container cannot see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deployer.inventory.model import Inventory, Ssh
from deployer.transport.base import Transport
from deployer.transport.resolve import Hop, resolve
from deployer.transport.ssh import SshTransport


def jumps(inventory: Inventory) -> tuple[Hop, ...]:
    """The machines before the box in the order they are passed; with [pct] its Proxmox host is the last of them.

    Raises UsageError where the SSH config cannot be resolved.
    """
    hops = resolve(inventory.ssh)
    return hops if inventory.pct else hops[:-1]


@contextmanager
def reached(ssh: Ssh, number: int) -> Iterator[Transport]:
    """Jump host `number` (from 0), connected; closed at the end. Raises what connecting to the host itself raises."""
    transport = SshTransport(ssh, name=resolve(ssh)[number].alias)
    transport.hops = transport.hops[: number + 1]
    try:
        transport.connect()
        yield transport
    finally:
        transport.close()
