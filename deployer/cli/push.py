"""push: the drafter, and the target if the inventory says so."""

from __future__ import annotations

from deployer.cli.host import HostName, PlanOnly, carry_out
from deployer.push.plan import plan as build


def push(host: HostName, plan: PlanOnly = False) -> None:
    """Sends the drafter (checked, resumable, SHA-256 on both ends) and, if the inventory says so, the target."""
    carry_out(host, "push", build, plan_only=plan)
