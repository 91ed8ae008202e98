"""Every fault in every step of an `up`. After each: nothing is half done under a final name, what served before serves
on or is back, and the next `up` ends well with the new deployment serving."""

from __future__ import annotations

import pytest

from tests.faults import table
from tests.faults.cells import CELLS
from tests.faults.play import Cell, play
from tests.faults.scene import Scene

pytestmark = [pytest.mark.lab, pytest.mark.faults, pytest.mark.timeout(2400)]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_nothing_is_lost(scene: Scene, cell: Cell) -> None:
    table.note(cell, "FAILED")
    table.note(cell, str(play(scene, cell)))
