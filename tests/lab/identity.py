"""Who is who: each container's own host key, the client's key, and the known_hosts and ssh_config that hold to them."""

from __future__ import annotations

from collections.abc import Mapping

from .containers import CT129, CT130, KPRO5, containers, guests
from .machine import sh
from .place import Place


def ensure_keys(place: Place) -> None:
    """Make the client's key and one host key a container, where absent."""
    place.keys.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("client", *(container.name for container in containers(place))):
        if not (place.keys / name).exists():
            sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{name} of the lab", "-f", place.keys / name)


def public_keys(place: Place) -> dict[str, str]:
    """Container name -> its host key, as 'ssh-ed25519 AAAA...'."""
    return {c.name: " ".join((place.keys / f"{c.name}.pub").read_text().split()[:2]) for c in containers(place)}


def known_hosts(port: int, keys: Mapping[str, str]) -> str:
    """A known_hosts file: kpro5 by the loopback port that leads to it, both by alias and by address."""
    names = {
        KPRO5.name: (f"[127.0.0.1]:{port}", KPRO5.name, KPRO5.address),
        **{ct.name: (ct.address, ct.name) for ct in (CT129, CT130)},
    }
    return "".join(f"{','.join(names[name])} {key}\n" for name, key in keys.items())


def ssh_config(place: Place, port: int) -> str:
    """An OpenSSH client configuration in which only the lab's keys count, in both directions. Used with `ssh -F`."""
    behind = "".join(
        f"Host {ct.name}\n  HostName {ct.address}\n  User {ct.user}\n  ProxyJump {KPRO5.name}\n\n"
        for ct in guests(place)
    )
    return f"""\
Host {KPRO5.name}
  HostName 127.0.0.1
  Port {port}
  User {KPRO5.user}

{behind}Host *
  IdentityFile {place.client_key}
  IdentitiesOnly yes
  IdentityAgent none
  BatchMode yes
  StrictHostKeyChecking yes
  UserKnownHostsFile {place.known_hosts}
  GlobalKnownHostsFile /dev/null
  UpdateHostKeys no
  LogLevel ERROR
"""
