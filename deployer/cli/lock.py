"""lock: who is deploying to a host."""

from __future__ import annotations

from typing import Annotated

import typer

from deployer.cli.display import PlanDisplay, out, show_plan
from deployer.cli.host import Host, HostName, PlanOnly, reached
from deployer.cli.report import report
from deployer.errors import UsageError
from deployer.plan import audit
from deployer.plan.apply import run
from deployer.plan.audit import Entry
from deployer.plan.lock import Owner, break_it, look
from deployer.plan.step import Plan, Progress, Step

Break = Annotated[
    str | None,
    typer.Option("--break", metavar="REASON", help="remove it, whoever holds it; the audit log keeps the reason"),
]


def lock(host: HostName, reason: Break = None, plan: PlanOnly = False) -> None:
    """Shows who holds the host's deployment lock; --break removes one whose owner was killed.

    Examples:
        ddtree-deploy lock ct129
        ddtree-deploy lock ct129 --break "the laptop died"
    """
    if reason is not None and not reason.strip():
        raise UsageError("--break needs a reason", where="--break", remedy='e.g. --break "the laptop died"')
    with reached(host) as reached_host:
        owner = look(reached_host.transport, reached_host.layout)
        report.owner(owner)
        if reason is None:
            out.print(str(owner or "not locked"), markup=False)
            return
        steps = breaking(reached_host, owner, reason)
        if plan:
            show_plan(steps)
            return
        with PlanDisplay() as display:
            run(steps, display)
        report.owner(None)


def breaking(host: Host, owner: Owner | None, reason: str) -> Plan:
    """The step that removes `owner`'s lock and says so in the audit log."""
    if owner is None:
        return Plan(host.inventory.name, (Step("lock", "break", "not locked"),))

    def remove(progress: Progress) -> None:
        break_it(host.transport, host.layout, owner)
        entry = Entry.of("lock", [f"broke the lock of {owner}"], reason=reason)
        audit.write(host.transport, host.layout, entry)
        host.ended(entry)
        progress.say(f"broken: {owner}")

    return Plan(host.inventory.name, (Step("lock", "break", f"{owner}; because: {reason}", remove),))
