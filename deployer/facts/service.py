"""What is deployed: the unit's state, the current release and the ones kept beside it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from deployer.plan.layout import Layout
from deployer.transport.base import Transport

PROPERTIES = "LoadState,ActiveState,SubState,MainPID,NRestarts,InvocationID,ActiveEnterTimestamp"
COMMAND = (
    f"systemctl show {{UNIT}} -p {PROPERTIES} 2>/dev/null || true; "
    'echo "current=$(readlink {CURRENT})"; for r in {RELEASES}/*/; do test -d "$r" && echo "release=$r"; done; true'
)


@dataclass(frozen=True)
class ServiceState:
    """As systemd says. `invocation` changes with every start; `since` is empty when the unit never ran."""

    load: str
    active: str
    sub: str
    main_pid: int
    restarts: int
    invocation: str
    since: str
    current: str | None
    releases: tuple[str, ...]

    @property
    def running(self) -> bool:
        return self.active == "active"

    @property
    def installed(self) -> bool:
        return self.load == "loaded"


def command(layout: Layout) -> str:
    return (
        COMMAND.replace("{UNIT}", shlex.quote(layout.unit))
        .replace("{CURRENT}", shlex.quote(layout.current))
        .replace("{RELEASES}", shlex.quote(layout.releases))
    )


def parse(text: str) -> ServiceState:
    """Reads systemctl's properties and the two folders."""
    pairs = [line.partition("=")[::2] for line in text.splitlines() if "=" in line]
    values = dict(pairs)
    return ServiceState(
        load=values.get("LoadState", "not-found"),
        active=values.get("ActiveState", "inactive"),
        sub=values.get("SubState", "dead"),
        main_pid=int(values.get("MainPID") or 0),
        restarts=int(values.get("NRestarts") or 0),
        invocation=values.get("InvocationID", ""),
        since=values.get("ActiveEnterTimestamp", ""),
        current=values.get("current", "").rstrip("/").rpartition("/")[2] or None,
        releases=tuple(value.rstrip("/").rpartition("/")[2] for key, value in pairs if key == "release"),
    )


def read(transport: Transport, layout: Layout) -> ServiceState:
    return parse(transport.run(command(layout)).stdout)
