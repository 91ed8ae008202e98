"""The resolved way as an OpenSSH config, so that rsync's ssh takes the same hops under the same strict rules."""

from __future__ import annotations

from deployer.transport.resolve import Hop


def destination(hops: tuple[Hop, ...]) -> str:
    """The Host name under which `config` files the last hop."""
    return f"hop{len(hops)}"


def config(hops: tuple[Hop, ...], *, connect_timeout: float) -> str:
    """The text of an ssh_config with hosts hop1, hop2, ... in order."""
    blocks = [_block(number, hop, connect_timeout) for number, hop in enumerate(hops, start=1)]
    return "\n".join(blocks)


def _block(number: int, hop: Hop, connect_timeout: float) -> str:
    lines = [
        f"Host hop{number}",
        f"HostName {hop.hostname}",
        f"Port {hop.port}",
        f"User {hop.user}",
        *(f'IdentityFile "{identity}"' for identity in hop.identities),
        f"UserKnownHostsFile {' '.join(_quoted(str(file)) for file in hop.known_hosts) or 'none'}",
        "GlobalKnownHostsFile /dev/null",
        "StrictHostKeyChecking yes",
        "BatchMode yes",
        f"ConnectTimeout {max(1, round(connect_timeout))}",
        "ServerAliveInterval 15",
        "ServerAliveCountMax 4",
        *([f"HostKeyAlias {hop.host_key_alias}"] if hop.host_key_alias else []),
        *([] if hop.use_agent else ["IdentityAgent none"]),
        *([f"ProxyCommand {hop.proxy_command}"] if hop.proxy_command else []),
        *([f"ProxyJump hop{number - 1}"] if number > 1 else []),
    ]
    return lines[0] + "\n" + "".join(f"  {line}\n" for line in lines[1:])


def _quoted(path: str) -> str:
    return f'"{path}"'
