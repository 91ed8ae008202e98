"""What was measured for `tune`, and what follows from it: the choice, its confirmation, and what might be worth measuring."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from deployer.bench.arms import AR
from deployer.bench.model import ArmLine, BenchFile, Cell
from deployer.bench.plan import Scene, scene
from deployer.bench.series import Series, gathered
from deployer.bench.subject import subject
from deployer.bench.sweep import Sweep
from deployer.bench.table import CPU_REMARK
from deployer.errors import UndecidedError
from deployer.inventory.model import Inventory
from deployer.serve.decoding import Decoding, autoregressive, drafter_width
from deployer.transport.base import Transport
from deployer.tune.choose import choose
from deployer.tune.confirm import confirmed, rivals, trials
from deployer.tune.estimate import curve, guesses
from deployer.tune.model import Choice, Tuning
from deployer.tune.words import estimated, grid, sentences


@dataclass(frozen=True)
class Tune:
    """What is asked: the first measurement, and where its answer is written."""

    sweep: Sweep
    file: Path
    overwrite: bool = False

    def confirming(self, choice: Choice) -> Sweep:
        """As many rounds again, numbered on: none of them has decided anything yet."""
        return replace(self.sweep, arms=rivals(choice), first_round=self.sweep.first_round + self.sweep.rounds)


@dataclass(frozen=True)
class Found:
    """All that was measured, and what follows from it."""

    file: BenchFile
    tuning: Tuning

    def text(self) -> str:
        return grid(self.tuning)


@dataclass(frozen=True)
class Part:
    """One of the two measurements, all of it."""

    scene: Scene
    cells: tuple[Cell, ...]

    @property
    def lines(self) -> tuple[ArmLine, ...]:
        return self.scene.lines

    @cached_property
    def series(self) -> tuple[Series, ...]:
        return gathered(self.lines, self.cells)

    def choice(self) -> Choice:
        """What it says."""
        return choose(self.series, self.lines, drafter_width(self.scene.runner.inventory))


def measured(inventory: Inventory, transport: Transport, sweep: Sweep) -> Part:
    """What a sweep left on the host. UndecidedError when some of it is missing."""
    here = scene(inventory, transport, sweep)
    cells = here.known()
    missing = len(here.cells) - len(cells)
    if missing:
        raise UndecidedError(
            f"{missing} of {len(here.cells)} measurements are missing",
            where=transport.name,
            remedy=f"ddtree-deploy tune {inventory.name} goes on with them; on GPUs that the service holds, --take-gpu",
        )
    return Part(here, cells)


def found(tune: Tune, inventory: Inventory, transport: Transport) -> Found:
    """The answer. UndecidedError when some of it was not measured yet."""
    first = measured(inventory, transport, tune.sweep)
    choice = first.choice()
    again = None if choice.arm == AR else measured(inventory, transport, tune.confirming(choice))
    lines, cells = (first.lines, first.cells) if again is None else _joined(first, again)
    file = BenchFile(subject=subject(inventory, transport, first.scene), arms=lines, cells=cells)
    return Found(file, _tuning(first, choice, again, file, tune))


def _joined(first: Part, again: Part) -> tuple[tuple[ArmLine, ...], tuple[Cell, ...]]:
    lines = {line.name: line for line in (*first.lines, *again.lines)}
    return tuple(lines.values()), (*first.cells, *again.cells)


def _tuning(first: Part, choice: Choice, again: Part | None, file: BenchFile, tune: Tune) -> Tuning:
    made = trials(again.series, again.lines) if again else ()
    arm = confirmed(choice, made) if made else choice.arm
    how = _decoding(again, arm)
    accepted = curve(first.series, {line.name: line.tokens for line in first.lines})
    better = guesses(accepted, choice.picks) if accepted else ()
    said = sentences(choice, made, arm, {line.name: line.title for line in file.arms}) + estimated(accepted, better)
    return Tuning(
        choice=choice,
        trials=made,
        arm=arm,
        kind=how.kind,
        tokens=how.tokens,
        table=how.table,
        curve=accepted,
        guesses=better,
        sentences=(CPU_REMARK, *said) if file.subject.build == "cpu" else said,
        file=str(tune.file),
    )


def _decoding(again: Part | None, arm: str) -> Decoding:
    if again is None:
        return autoregressive()
    return next(one.decoding for one in again.scene.arms if one.name == arm)
