"""The machines on the way to a host, each as a host of its own: a Proxmox host knows what its container cannot see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deployer.inventory.model import Ssh
from deployer.transport.base import Transport
from deployer.transport.resolve import Hop, resolve
from deployer.transport.ssh import SshTransport


def jumps(ssh: Ssh) -> tuple[Hop, ...]:
    """The jump hosts in the order they are passed. Raises UsageError where the SSH config cannot be resolved."""
    return resolve(ssh)[:-1]


@contextmanager
def reached(ssh: Ssh, number: int) -> Iterator[Transport]:
    """Jump host `number` (from 0), connected; closed at the end. Raises what connecting to the host itself raises."""
    transport = SshTransport(ssh, name=jumps(ssh)[number].alias)
    transport.hops = transport.hops[: number + 1]
    try:
        transport.connect()
        yield transport
    finally:
        transport.close()
