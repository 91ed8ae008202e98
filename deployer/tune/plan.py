"""The stages of `tune`: measure, confirm what was chosen, write it down. Each is planned by what the one before left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from deployer.bench import plan as bench
from deployer.bench.arms import AR
from deployer.bench.measuring import Measuring
from deployer.bench.model import ArmLine, BenchFile, Cell
from deployer.bench.plan import Scene, scene
from deployer.bench.series import series
from deployer.bench.subject import subject
from deployer.bench.sweep import Sweep
from deployer.bench.table import CPU_REMARK
from deployer.errors import PreflightError, UsageError
from deployer.inventory.model import Inventory
from deployer.plan.step import Plan, Progress, Step
from deployer.serve import tuned
from deployer.serve.decoding import Decoding, autoregressive, drafter_width
from deployer.serve.options import normalised
from deployer.serve.tuned import Tuned
from deployer.transport.base import Transport
from deployer.tune.choose import candidates, choose
from deployer.tune.confirm import confirmed, rivals, trials
from deployer.tune.model import Choice, Trial, Tuning
from deployer.tune.words import grid, sentences

ROUNDS = 3
_USUAL_SEQS = 8


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


def usual_concurrency(inventory: Inventory) -> tuple[int, ...]:
    """1, 2, 4 ... to the most requests that a step takes: [serve.options] max-num-seqs, else 8."""
    most = normalised(inventory.serve.options).get("max-num-seqs", _USUAL_SEQS)
    if not isinstance(most, int) or most < 1:
        raise UsageError(f"max-num-seqs is {most!r}", where=f"inventory {inventory.name}", remedy="a number from 1 on")
    return tuple(sorted({*(1 << power for power in range(most.bit_length())), most}))


def usual_arms(inventory: Inventory) -> tuple[str, ...]:
    """See deployer.tune.choose."""
    return candidates(drafter_width(inventory))


def measuring(tune: Tune, inventory: Inventory, transport: Transport, *, take_gpu: bool = False) -> Plan:
    """Every candidate at every number of requests, as `bench` would; and at once, while the service is away, the choice."""
    if fixed := [arm for arm in tune.sweep.arms if "@" in arm]:
        remedy = "name them with one number each: how they change with the batch is what is looked for"
        raise UsageError(f"{', '.join(fixed)} is a table already", where="--arms", remedy=remedy)
    made = bench.plan(inventory, transport, take_gpu=take_gpu, sweep=tune.sweep)
    return Plan(inventory.name, tuple(_going_on(step, tune, inventory, transport) for step in made.steps))


def _going_on(step: Step, tune: Tune, inventory: Inventory, transport: Transport) -> Step:
    if not isinstance(step.action, Measuring):
        return step
    action = replace(step.action, after=partial(_after, tune, inventory, transport))
    why = f"{step.reason}; then as many rounds again of the choice, plain decoding and the best chains"
    return replace(step, reason=why, action=action)


def _after(tune: Tune, inventory: Inventory, transport: Transport, cells: tuple[Cell, ...]) -> Measuring | None:
    choice = _chosen(inventory, transport, scene(inventory, transport, tune.sweep), cells)
    if choice.arm == AR:
        return None
    again = scene(inventory, transport, tune.confirming(choice))
    return bench.measuring(again, again.known())


def confirming(tune: Tune, inventory: Inventory, transport: Transport, *, take_gpu: bool = False) -> Plan:
    """The choice beside plain decoding and the best chains. PreflightError before everything was measured."""
    here, cells = _measured(inventory, transport, tune.sweep)
    choice = _chosen(inventory, transport, here, cells)
    why = f"{choice.arm}, of {', '.join(arm.name for arm in here.arms)}"
    said = Step("tune", "choice", why)
    if choice.arm == AR:
        return Plan(
            inventory.name, (said, Step("tune", "confirm", "plain decoding is what all else is confirmed beside"))
        )
    return Plan(inventory.name, (said,)) + bench.plan(
        inventory, transport, take_gpu=take_gpu, sweep=tune.confirming(choice)
    )


def writing(tune: Tune, inventory: Inventory, transport: Transport) -> Plan:
    """The file that serve reads. PreflightError before everything was measured; UsageError if it says otherwise already."""
    new = found(tune, inventory, transport)
    text, path = _text(new, inventory), tune.file
    before = path.read_text(encoding="utf-8") if path.is_file() else None
    if before == text:
        return Plan(inventory.name, (Step("tune", path.name, f"{path} says so: {_title(new.tuning)}"),))
    if before is not None and not tune.overwrite:
        raise UsageError(
            f"it is there and is not what was found now: {_title(new.tuning)}",
            where=str(path),
            remedy=f"--overwrite keeps it as {_kept(path).name} and writes the new one; or --file FILE",
        )
    why = f"{_title(new.tuning)}; {_reading(path, inventory)}"
    return Plan(inventory.name, (Step("tune", f"write {path.name}", why, partial(_write, path, text)),))


def found(tune: Tune, inventory: Inventory, transport: Transport) -> Found:
    """What was measured and follows from it. PreflightError when some of it was not measured yet."""
    here, cells = _measured(inventory, transport, tune.sweep)
    choice, lines = _chosen(inventory, transport, here, cells), here.lines
    made, arm, how = tuple[Trial, ...](), choice.arm, autoregressive()
    if choice.arm != AR:
        again, more = _measured(inventory, transport, tune.confirming(choice))
        made = trials(series(_file(inventory, transport, again, again.lines, more)), again.lines)
        arm = confirmed(choice, made)
        how = next(one.decoding for one in again.arms if one.name == arm)
        lines, cells = _joined(lines, again.lines), (*cells, *more)
    file = _file(inventory, transport, here, lines, cells)
    return Found(file, _tuning(choice, made, arm, how, file, tune))


def _tuning(choice: Choice, made: tuple[Trial, ...], arm: str, how: Decoding, file: BenchFile, tune: Tune) -> Tuning:
    said = sentences(choice, made, arm, {line.name: line.title for line in file.arms})
    if file.subject.build == "cpu":
        said = (CPU_REMARK, *said)
    return Tuning(
        choice=choice,
        trials=made,
        arm=arm,
        kind=how.kind,
        tokens=how.tokens,
        table=how.table,
        sentences=said,
        file=str(tune.file),
    )


def _measured(inventory: Inventory, transport: Transport, sweep: Sweep) -> tuple[Scene, tuple[Cell, ...]]:
    here = scene(inventory, transport, sweep)
    cells = here.known()
    missing = len(here.cells) - len(cells)
    if missing:
        raise PreflightError(
            f"{missing} of {len(here.cells)} measurements are missing",
            where=transport.name,
            remedy=f"ddtree-deploy tune {inventory.name} goes on with them; on GPUs that the service holds, --take-gpu",
        )
    return here, cells


def _chosen(inventory: Inventory, transport: Transport, here: Scene, cells: tuple[Cell, ...]) -> Choice:
    file = _file(inventory, transport, here, here.lines, cells)
    return choose(series(file), here.lines, drafter_width(inventory))


def _file(
    inventory: Inventory, transport: Transport, here: Scene, lines: tuple[ArmLine, ...], cells: tuple[Cell, ...]
) -> BenchFile:
    return BenchFile(subject=subject(inventory, transport, here), arms=lines, cells=cells)


def _joined(first: Iterable[ArmLine], then: Iterable[ArmLine]) -> tuple[ArmLine, ...]:
    return tuple({line.name: line for line in (*first, *then)}.values())


def _title(tuning: Tuning) -> str:
    return str(Decoding(tuning.kind, tuning.tokens, tuning.table))


def _reading(path: Path, inventory: Inventory) -> str:
    """What makes serve read it."""
    if inventory.tree.tuned == path:
        return f"ddtree-deploy serve {inventory.name} reads it"
    return f'serve reads it once [tree] says tuned = "{path.name}" in place of a budget'


def _text(new: Found, inventory: Inventory) -> str:
    subject, last = new.file.subject, max(cell.measured.when for cell in new.file.cells)
    values = Tuned(
        kind=new.tuning.kind,
        tokens=new.tuning.tokens,
        table=new.tuning.table,
        host=subject.host,
        when=last,
        release=subject.release,
        drafter=subject.drafter.fingerprint,
    )
    head = (
        f"Written by `ddtree-deploy tune {inventory.name}`; read by `serve` if the inventory's [tree] names it.",
        "",
    )
    return tuned.text(values, (*head, *new.text().splitlines()))


def _kept(path: Path) -> Path:
    return path.with_name(f"{path.name}.before")


def _write(path: Path, text: str, progress: Progress) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    if path.is_file():
        path.replace(_kept(path))
        progress.say(f"what was there is {_kept(path)}")
    part.replace(path)
