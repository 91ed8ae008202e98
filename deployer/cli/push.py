"""push: the drafter, and the target if the inventory says so; each from the laptop or from the hub."""

from __future__ import annotations

from typing import Annotated

import typer

from deployer.cli.host import HostName, PlanOnly, carry_out
from deployer.hub.plan import plan as fetching
from deployer.inventory.model import Inventory
from deployer.plan.step import Plan
from deployer.push.plan import plan as sending
from deployer.transport.base import Transport

Limit = Annotated[
    float | None, typer.Option("--limit", metavar="MB/S", min=0.01, help="send this many megabytes a second at most")
]


Verify = Annotated[
    bool, typer.Option("--verify", help="the host reads every byte again, also of files that did not change")
]


def push(host: HostName, limit: Limit = None, verify: Verify = False, plan: PlanOnly = False) -> None:
    """Sends the drafter (checked, resumable, SHA-256 on both ends) and the target, or has the host fetch them from the hub.

    Examples:
        ddtree-deploy push ct129 --plan
        ddtree-deploy push ct129 --limit 20  # megabytes a second
    """

    def build(inventory: Inventory, transport: Transport) -> Plan:
        return sending(inventory, transport, limit=limit, verify=verify) + fetching(inventory, transport, verify=verify)

    carry_out(host, "push", build, plan_only=plan)
