"""The bench's results: gathered from the host, and the lines that are shown after `bench` and `up`."""

from __future__ import annotations

from dataclasses import dataclass

from deployer.bench.model import BenchFile
from deployer.bench.plan import scene
from deployer.bench.result import ArmResult, summed_up
from deployer.bench.subject import subject
from deployer.bench.sweep import Sweep
from deployer.bench.table import table
from deployer.errors import PreflightError
from deployer.inventory.model import Inventory
from deployer.transport.base import Transport


@dataclass(frozen=True)
class Results:
    """A sweep as far as it was measured, and each arm in a line."""

    file: BenchFile
    arms: list[ArmResult]

    def text(self) -> str:
        return table(self.file)


def results(
    inventory: Inventory, transport: Transport, sweep: Sweep | None = None, *, mtp: bool = False
) -> Results | None:
    """What was measured with the installed release and this inventory; None when nothing was."""
    try:
        here = scene(inventory, transport, sweep, mtp=mtp)
    except PreflightError:
        return None
    cells = here.known()
    if not cells:
        return None
    file = BenchFile(subject=subject(inventory, transport, here), arms=here.lines, cells=cells)
    return Results(file, summed_up(here.lines, cells))
