"""Strict host keys: what known_hosts says, and the error with both fingerprints and the command that mends it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import paramiko

from deployer.errors import PreflightError
from deployer.transport.resolve import Hop


class HostKeyError(PreflightError):
    """The host's key is unknown, changed or revoked; nothing was sent to it."""


class KnownKeys:
    """The keys that known_hosts files hold for one hop.

    Looked up by `ssh-keygen -F`: hashed names and patterns count.
    """

    def __init__(self, hop: Hop) -> None:
        self.good: dict[str, paramiko.PKey] = {}
        self.revoked: set[str] = set()
        for file in hop.known_hosts:
            if file.is_file():
                self._read(hop.known_name, file)

    def _read(self, name: str, file: Path) -> None:
        command = ["ssh-keygen", "-F", name, "-f", str(file)]
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
        for line in found.splitlines():
            words = line.split()
            if not words or words[0] in {"#", "@cert-authority"}:
                continue
            marked = words[0] == "@revoked"
            entry = paramiko.hostkeys.HostKeyEntry.from_line(" ".join(words[1:] if marked else words))
            if entry is None:
                continue
            if marked:
                self.revoked.add(entry.key.fingerprint)
            else:
                self.good.setdefault(entry.key.get_name(), entry.key)


class Strict(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # paramiko is untyped
    """Refuses every key that known_hosts does not hold."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        raise unknown(self._hop, key)


def guard(client: paramiko.SSHClient, hop: Hop) -> None:
    """Makes `client` accept the known keys of `hop` and nothing else."""
    known = KnownKeys(hop)
    # paramiko looks keys up under the address it connects to, whatever alias they are filed under.
    name = hop.hostname if hop.port == 22 else f"[{hop.hostname}]:{hop.port}"
    for kind, key in known.good.items():
        if key.fingerprint not in known.revoked:
            client.get_host_keys().add(name, kind, key)
    client.set_missing_host_key_policy(Strict(hop))


def unknown(hop: Hop, offered: paramiko.PKey) -> HostKeyError:
    """The error for a host that known_hosts has no usable key for."""
    return HostKeyError(
        f"the host key of {hop} is not known\n  offered: {offered.get_name()} {offered.fingerprint}",
        where=", ".join(str(file) for file in hop.known_hosts),
        remedy=f"if the host's own console shows that fingerprint ({_on_console(offered)}):\n{_adding(hop, offered)}",
    )


def changed(hop: Hop, offered: paramiko.PKey, expected: paramiko.PKey) -> HostKeyError:
    """The error for a host whose key is another than the known one: reinstalled, or somebody in between."""
    forget = shlex.join(["ssh-keygen", "-R", hop.known_name, "-f", _file_to_mend(hop)])
    return HostKeyError(
        f"the host key of {hop} has CHANGED: the machine was reinstalled, or somebody is in between\n"
        f"  known:   {expected.get_name()} {expected.fingerprint}\n"
        f"  offered: {offered.get_name()} {offered.fingerprint}",
        where=", ".join(str(file) for file in hop.known_hosts),
        remedy=f"ask who changed it; only if the host's console shows the offered one ({_on_console(offered)}):\n"
        f"      {forget}\n{_adding(hop, offered)}",
    )


def _adding(hop: Hop, key: paramiko.PKey) -> str:
    entry = f"{hop.known_name} {key.get_name()} {key.get_base64()}"
    return f"      echo {shlex.quote(entry)} >> {shlex.quote(_file_to_mend(hop))}"


def _file_to_mend(hop: Hop) -> str:
    """The first of the files: the user's own."""
    return str(hop.known_hosts[0] if hop.known_hosts else Path("~/.ssh/known_hosts").expanduser())


def _on_console(key: paramiko.PKey) -> str:
    kind = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(key.get_name(), "ecdsa")
    return f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"
