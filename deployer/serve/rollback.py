"""`rollback`: back to an earlier deployment, with its release, configuration and drafter; through the same gate."""

from __future__ import annotations

from dataclasses import replace

from deployer.errors import PreflightError, UsageError
from deployer.fleet.traffic import behind
from deployer.inventory.model import Inventory
from deployer.plan.step import Plan, Step
from deployer.serve.decoding import Decoding, kind_of
from deployer.serve.gate import Wanted
from deployer.serve.records import SERVING, Record, Records
from deployer.serve.service import Service
from deployer.serve.switch import Switch
from deployer.transport.base import Transport


def plan(inventory: Inventory, transport: Transport, *, to: str | None = None, rolling: bool = False) -> Plan:
    """Steps back to deployment or release `to`, else to the one before the active one; `rolling` as in `serve`."""
    service = Service.of(inventory, transport)
    records = Records(transport, service.layout)
    active = records.active()
    goal = _chosen(records, active, to, transport.name)
    state = service.state()
    if active is not None and goal.id == active.id and state.running:
        return Plan(inventory.name, (Step("rollback", "service", f"{goal.id} is what runs"),))
    if goal.release not in state.releases:
        raise PreflightError(
            f"release {goal.release} of deployment {goal.id} is no longer on the host",
            where=transport.name,
            remedy="install and serve that version again",
        )
    wanted, traffic = _wanted(inventory, records, goal), behind(inventory, strict=rolling)
    subject = _subject(service, records, goal)
    switch = Switch(*subject, goal, active, state.running, wanted, traffic=traffic)
    return Plan(
        inventory.name,
        (
            Step("rollback", "start", f"{goal} replaces {active.id if active else 'nothing'}", switch.start),
            Step("rollback", "gate", f"it has to answer within {switch.wanted.timeout:.0f} s", switch.prove),
        ),
    )


def _subject(service: Service, records: Records, goal: Record) -> tuple[Service, Records]:
    port, model = records.address(goal)
    return replace(service, model=model, endpoint=replace(service.endpoint, port=port)), records


def _wanted(inventory: Inventory, records: Records, goal: Record) -> Wanted:
    """It proved its text and acceptance under an inventory that is gone; now it must serve."""
    _, model = records.address(goal)
    how = Decoding(kind_of(goal.decoding), 0)
    return replace(Wanted.of(inventory, how), model=model, expect=None, min_acceptance_length=1.0)


def _chosen(records: Records, active: Record | None, to: str | None, host: str) -> Record:
    if to is None:
        before = records.previous(active) if active else None
        if before is None:
            raise PreflightError("there is no earlier deployment", where=host, remedy="ddtree-deploy serve")
        return before
    proved = [record for record in records.all() if record.outcome == SERVING]
    for record in reversed(proved):
        if to in (record.id, record.release):
            return record
    known = ", ".join(record.id for record in proved) or "none"
    raise UsageError(f"no deployment or release {to} has served here", where=host, remedy=f"known: {known}")
