"""push: the drafter, and the target if the inventory says so."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from deployer.cli.host import HostName, PlanOnly, carry_out
from deployer.push.plan import plan as build

Limit = Annotated[
    float | None, typer.Option("--limit", metavar="MB/S", min=0.01, help="send this many megabytes a second at most")
]


def push(host: HostName, limit: Limit = None, plan: PlanOnly = False) -> None:
    """Sends the drafter (checked, resumable, SHA-256 on both ends) and, if the inventory says so, the target."""
    carry_out(host, "push", partial(build, limit=limit), plan_only=plan)
