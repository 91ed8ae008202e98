"""Whether systemd's IPAddressDeny holds here. Where it cannot load its filter (an unprivileged container) it only warns,
and a unit that listens on the network would be open to all of it.
"""

from __future__ import annotations

from shlex import quote

from deployer.errors import PreflightError
from deployer.transport.base import Transport

# A datagram to nobody: the filter refuses to send it.
_LOOK = """
import socket
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("127.0.0.1", 9))
    print("open")
except PermissionError:
    print("closed")
"""
COMMAND = "systemd-run --quiet --wait --collect --pipe -p RuntimeMaxSec=20 -p IPAddressDeny=any {PYTHON} -I -c {LOOK} </dev/null"


def must_hold(transport: Transport, python: str, unit: str) -> None:
    """Raises PreflightError unless a unit that may reach nobody reaches nobody. Needs root."""
    command = COMMAND.replace("{PYTHON}", f"$(command -v {quote(python)})").replace("{LOOK}", quote(_LOOK))
    said = transport.run(command, sudo=True, check=False)
    if said.stdout.strip() == "closed":
        return
    seen = "the kernel does not enforce it" if said.stdout.strip() == "open" else said.stderr.strip()[-200:]
    raise PreflightError(
        f"{unit} would listen on the network, and IPAddressDeny, which lets in only those it should, does not hold: {seen}",
        where=transport.name,
        remedy="an unprivileged container enforces none: serve on loopback (no `address`), or make the container privileged",
    )
