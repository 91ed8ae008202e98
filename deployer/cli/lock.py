"""lock: who is deploying to a host."""

from __future__ import annotations

from typing import Annotated

import typer

from deployer.cli.display import out
from deployer.cli.host import HostName, reached
from deployer.plan.lock import break_it, look


def lock(
    host: HostName, force: Annotated[bool, typer.Option("--break", help="remove it, whoever holds it")] = False
) -> None:
    """Shows who holds the host's deployment lock; --break removes one whose owner was killed."""
    with reached(host) as reached_host:
        owner = look(reached_host.transport, reached_host.layout)
        if owner is None:
            out.print("not locked")
        elif force:
            break_it(reached_host.transport, reached_host.layout)
            out.print(f"broken: {owner}")
        else:
            out.print(str(owner))
