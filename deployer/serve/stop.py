"""`stop`: the service ends and does not come back at boot; everything else stays."""

from __future__ import annotations

from shlex import quote

from deployer.fleet import parting
from deployer.inventory.model import Inventory
from deployer.plan.step import Plan, Progress, Step
from deployer.serve.service import Service
from deployer.transport.base import Transport


def plan(inventory: Inventory, transport: Transport) -> Plan:
    """Out of its routers, then stopped; nothing when it is stopped already."""
    service = Service.of(inventory, transport)
    state = service.state()
    unit = service.layout.unit
    if not state.installed:
        return Plan(inventory.name, (Step("stop", "service", f"{unit} is not installed"),))
    if state.active in ("inactive", "failed"):
        return Plan(inventory.name, (Step("stop", "service", f"{unit} is {state.active}"),))

    def stop(progress: Progress) -> None:
        progress.say("running requests are let finish")
        service.stop()
        transport.run(f"systemctl disable -q {quote(unit)}", sudo=True)

    end = Step("stop", "service", f"{unit} is {state.active}, process {state.main_pid}", stop)
    return Plan(inventory.name, (parting.ended(end, inventory, service),))
