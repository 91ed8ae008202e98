"""The bench's results, as they are shown after `bench` and `up`."""

from __future__ import annotations

from deployer.bench.plan import scene
from deployer.bench.result import CPU_REMARK, ArmResult, table
from deployer.errors import PreflightError
from deployer.facts import gpu
from deployer.inventory.model import Inventory
from deployer.transport.base import Transport


def results(inventory: Inventory, transport: Transport) -> list[ArmResult]:
    """What was measured with the installed release and this inventory; empty when nothing was."""
    nodes = gpu.read(transport).nodes if inventory.install.build == "cuda" else ()
    try:
        here = scene(inventory, transport, nodes)
    except PreflightError:
        return []
    known = here.store.read(here.arms)
    return [known[arm.name] for arm in here.arms if arm.name in known]


def as_text(inventory: Inventory, results: list[ArmResult]) -> str:
    """The table, with a remark where times say nothing."""
    return table(results, CPU_REMARK if inventory.install.build == "cpu" else None)
