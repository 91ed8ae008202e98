"""One cell of the table: a step is under way, the fault happens, and what must hold then is looked at."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from tests.faults.causes import Cause
from tests.faults.scene import Deployment, Scene, Serving
from tests.faults.steps import Step
from tests.faults.tool import Ended, Tool
from tests.lab.nsproxy import Faults

_ENDS = 900.0  # seconds for a run of the tool, whatever happens to it
_BACK = 400.0  # seconds until what served before serves again
_LOCKED = 8


class Old(StrEnum):
    """What becomes of the deployment that served before."""

    UNTOUCHED = "served on"
    BACK = "back"
    REPLACED = "replaced"  # the run went on to its end in spite of the fault


@dataclass(frozen=True)
class Cell:
    """A fault in a step. `codes` are those with which the run that was hit may end, `olds` what may become of the old
    deployment. `mended_at`: the fault ends when the tool says this; else when the tool has ended.
    """

    step: Step
    cause: Cause
    codes: frozenset[int]
    olds: frozenset[Old]
    mended_at: str | None = None
    second: bool = False

    def __str__(self) -> str:
        return f"{self.step.name}-{self.cause.name}".replace(" ", "_")


@dataclass(frozen=True)
class Seen:
    """What came of it."""

    code: int
    old: Old
    back: float
    again: float

    def __str__(self) -> str:
        old = f"old back after {self.back:.0f} s" if self.old is Old.BACK else f"old {self.old}"
        code = "killed" if self.code == -9 else f"exit {self.code}"
        return f"{code}, {old}, next up {self.again:.0f} s"


def play(scene: Scene, cell: Cell) -> Seen:
    """Plays a cell and checks it."""
    old = scene.settled()
    new = scene.other(old)
    before = scene.serving()
    cell.step.prepare(scene, new)
    tool = Tool("up", new.inventory)
    cell.step.under_way(scene, tool)
    cell.cause.cause(scene, tool)
    if cell.second:
        _is_turned_away(Tool("up", new.inventory).ended(_ENDS))
    if cell.mended_at:
        tool.says(cell.mended_at, within=_ENDS)
        _mend(scene, cell)
    first = tool.ended(_ENDS)
    fate, back = _fate(scene, cell, first, before, old, new)
    _mend(scene, cell)
    _nothing_is_half_done(scene, first)
    again = Tool("up", new.inventory).ended(_ENDS)
    assert again.code == 0, f"the next up ended with {again.code}:\n{_both(first, again)}"
    seen = scene.serves(new, 5.0)
    assert seen.is_(new), f"the next up ended well, and {seen} serves:\n{_both(first, again)}"
    _nothing_is_half_done(scene, again)
    left = scene.left_over()
    assert left == [], f"the next up left behind: {left}"
    return Seen(first.code, fate, back, again.seconds)


def _mend(scene: Scene, cell: Cell) -> None:
    cell.cause.mend(scene)
    scene.lab.set_faults(Faults())


def _fate(
    scene: Scene, cell: Cell, first: Ended, before: Serving, old: Deployment, new: Deployment
) -> tuple[Old, float]:
    """What became of the old deployment, and after how many seconds it was back."""
    assert "Traceback" not in first.output, first.output[-4000:]
    assert first.code in cell.codes, f"ended with {first.code}:\n{first.output[-4000:]}"
    began = time.monotonic()
    if first.code == 0:
        seen = scene.serves(new, 5.0)
        assert seen.is_(new), f"it ended well, and {seen} serves:\n{first.output[-4000:]}"
        fate = Old.REPLACED
    else:
        seen = scene.serves(old, _BACK)
        assert seen.is_(old), f"{seen} serves after the fault:\n{first.output[-4000:]}"
        fate = Old.UNTOUCHED if seen.invocation == before.invocation else Old.BACK
    assert fate in cell.olds, f"the old one {fate}: {before} {seen}\n{first.output[-4000:]}"
    return fate, time.monotonic() - began


def _nothing_is_half_done(scene: Scene, ended: Ended) -> None:
    found = scene.half_done()
    assert found == [], f"half done: {found}\n{ended.output[-4000:]}"


def _is_turned_away(second: Ended) -> None:
    assert second.code == _LOCKED, f"the second deployer ended with {second.code}:\n{second.output[-3000:]}"


def _both(first: Ended, again: Ended) -> str:
    return f"{again.output[-3000:]}\n--- the run before:\n{first.output[-3000:]}"
