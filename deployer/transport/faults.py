"""What went wrong on the way to a host, in the operator's words: which hop, what it means, what to try."""

from __future__ import annotations

import socket

import paramiko

from deployer.errors import DeployError, PreflightError, TransferError
from deployer.transport import hostkeys
from deployer.transport.resolve import Hop


class LineBroken(TransferError):
    """The connection broke or stalled: worth another attempt by whoever can continue where it broke."""


def explained(error: Exception, hops: tuple[Hop, ...], number: int, trial: str) -> DeployError:
    """The error of connecting to hop `number` (from 0). TransferError marks those worth another attempt."""
    hop = hops[number]
    if isinstance(error, hostkeys.HostKeyError):
        return error
    if isinstance(error, paramiko.BadHostKeyException):
        return hostkeys.changed(hop, error.key, error.expected_key)
    where = f"hop {number + 1} of {len(hops)}: {hop}" if len(hops) > 1 else str(hop)
    if isinstance(error, paramiko.PasswordRequiredException):
        return PreflightError("the key needs a passphrase", where=where, remedy="load it into the agent: ssh-add")
    if isinstance(error, paramiko.AuthenticationException):
        keys = ", ".join(str(key) for key in hop.identities if key.is_file()) or "none on disk"
        remedy = f"install your public key there (ssh-copy-id); try by hand: {trial}"
        return PreflightError(f"it does not accept your keys ({keys}, and the agent's)", where=where, remedy=remedy)
    what, remedy = _fault(error, hops, number)
    return TransferError(what, where=where, remedy=f"{remedy}; try by hand: {trial}")


def _fault(error: Exception, hops: tuple[Hop, ...], number: int) -> tuple[str, str]:
    if isinstance(error, paramiko.ChannelException):
        before, hop = hops[number - 1], hops[number]
        return (
            f"{before.alias} cannot reach {hop.hostname}:{hop.port}: {error.text}",
            "is the machine (or container) up, and is sshd running in it?",
        )
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved", "check HostName in the SSH config"
    if isinstance(error, TimeoutError):
        return "no answer in time", "check the network, the VPN and the port"
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError | ConnectionRefusedError):
        return "connection refused", "check the port, and that sshd runs there"
    return f"the connection failed: {str(error) or type(error).__name__}", "check sshd's log there"
