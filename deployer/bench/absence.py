"""A bench that stops the service: no router sends the box anything meanwhile."""

from __future__ import annotations

from deployer.bench.measuring import Measuring
from deployer.fleet.parting import lent
from deployer.inventory.model import Inventory
from deployer.plan.step import Plan, Step
from deployer.serve.service import Service
from deployer.transport.base import Transport


def announced(made: Plan, inventory: Inventory, transport: Transport) -> Plan:
    """The same plan; what stops the service in it takes the box out of its routers before, and puts it back after."""
    service = Service.of(inventory, transport)

    def stops(step: Step) -> bool:
        return isinstance(step.action, Measuring) and step.action.stops_service

    return Plan(made.host, tuple(lent(step, inventory, service) if stops(step) else step for step in made.steps))
