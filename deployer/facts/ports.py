"""Who listens on a TCP port, and which unit it belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deployer.transport.base import Transport

# As root: others see the port but not the process.
COMMAND = r"""out=$(ss -Hltnp 'sport = :{PORT}') || exit 1; printf '%s\n' "$out"
pid=$(printf '%s' "$out" | sed -n 's/.*pid=\([0-9]*\).*/\1/p' | head -n 1)
test -z "$pid" || cat "/proc/$pid/cgroup"; true"""
_USER = re.compile(r'users:\(\("(?P<process>[^"]+)",pid=(?P<pid>\d+)')
_UNIT = re.compile(r"/([^/\s]+\.(?:service|scope))(?:/|\s|$)")


@dataclass(frozen=True)
class Holder:
    """The process behind a listening port. `pid` is 0 when the host does not say (another namespace)."""

    address: str
    pid: int
    process: str
    unit: str | None

    def __str__(self) -> str:
        who = f"{self.process} (pid {self.pid})" if self.pid else "a process that cannot be seen from here"
        return f"{who}{f' of {self.unit}' if self.unit else ''} on {self.address}"


def command(port: int) -> str:
    return COMMAND.replace("{PORT}", str(port))


def parse(text: str) -> Holder | None:
    """Reads ss and the holder's cgroup; None when nobody listens."""
    listening = [line for line in text.splitlines() if line.startswith("LISTEN")]
    if not listening:
        return None
    user, unit = _USER.search(listening[0]), _UNIT.search(text)
    return Holder(
        address=listening[0].split()[3],
        pid=int(user["pid"]) if user else 0,
        process=user["process"] if user else "unknown",
        unit=unit[1] if unit else None,
    )


def read(transport: Transport, port: int, *, sudo: bool = True) -> Holder | None:
    """Without `sudo` a holder is found, but not who it is."""
    return parse(transport.run(command(port), sudo=sudo).stdout)
