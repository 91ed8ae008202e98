"""The bench's table, as it is printed after `bench` and `up`."""

from __future__ import annotations

from deployer.bench.plan import scene
from deployer.bench.result import CPU_REMARK, table
from deployer.errors import PreflightError
from deployer.facts import gpu
from deployer.inventory.model import Inventory
from deployer.transport.base import Transport


def last(inventory: Inventory, transport: Transport) -> str | None:
    """The table of what was measured with the installed release and this inventory; None when nothing was."""
    nodes = gpu.read(transport).nodes if inventory.install.build == "cuda" else ()
    try:
        here = scene(inventory, transport, nodes)
    except PreflightError:
        return None
    known = here.store.read(here.arms)
    results = [known[arm.name] for arm in here.arms if arm.name in known]
    return table(results, CPU_REMARK if inventory.install.build == "cpu" else None) if results else None
