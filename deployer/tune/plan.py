"""The stages of `tune`: measure, confirm what was chosen, write it down. Each is planned by what the one before left."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from deployer.bench import plan as bench
from deployer.bench.absence import announced
from deployer.bench.arms import AR, lines
from deployer.bench.figures import family_of
from deployer.bench.measuring import Measuring, longest
from deployer.bench.model import Cell
from deployer.bench.plan import scene
from deployer.bench.sweep import Sweep
from deployer.errors import UsageError
from deployer.inventory.model import Inventory
from deployer.plan.step import Plan, Progress, Step
from deployer.serve import tuned
from deployer.serve.decoding import Decoding, drafter_width
from deployer.serve.options import normalised
from deployer.serve.tuned import Tuned
from deployer.transport.base import Transport
from deployer.tune.choose import candidates, check
from deployer.tune.found import Found, Part, Tune, found, measured
from deployer.tune.model import Tuning

_USUAL_SEQS = 8


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
    check(lines(inventory, tune.sweep.arms))
    made = bench.plan(inventory, transport, take_gpu=take_gpu, sweep=tune.sweep)
    going_on = Plan(inventory.name, tuple(_going_on(step, tune, inventory, transport) for step in made.steps))
    return announced(going_on, inventory, transport)


def _going_on(step: Step, tune: Tune, inventory: Inventory, transport: Transport) -> Step:
    if not isinstance(step.action, Measuring):
        return step
    loads, cells = _again(tune.sweep)
    after = partial(_after, tune, inventory, transport)
    action = replace(step.action, after=after, after_seconds=longest(inventory, loads, cells))
    rounds = "as many rounds again of the choice, plain decoding and the best chains"
    return replace(step, reason=f"{step.reason}; then {rounds}: up to {loads} loads more", action=action)


def _again(sweep: Sweep) -> tuple[int, int]:
    """Loads and cells of the confirmation at most: with every chain the best one somewhere."""
    arms = 2 + sum(family_of(arm) == "chain" for arm in sweep.arms)
    # The arm at the turn of two rounds stays up.
    loads = arms if sweep.one_load else sweep.rounds * (arms - 1) + 1
    return loads, sweep.rounds * arms * len(sweep.sets) * len(sweep.temperatures) * len(sweep.concurrency)


def _after(tune: Tune, inventory: Inventory, transport: Transport, cells: tuple[Cell, ...]) -> Measuring | None:
    choice = Part(scene(inventory, transport, tune.sweep), cells).choice()
    if choice.arm == AR:
        return None
    again = scene(inventory, transport, tune.confirming(choice))
    return bench.measuring(again, again.known())


def confirming(tune: Tune, inventory: Inventory, transport: Transport, *, take_gpu: bool = False) -> Plan:
    """The choice beside plain decoding and the best chains. UndecidedError before everything was measured."""
    first = measured(inventory, transport, tune.sweep)
    choice = first.choice()
    said = Step("tune", "choice", f"{choice.arm}, of {', '.join(line.name for line in first.lines)}")
    if choice.arm == AR:
        why = "plain decoding is what all else is confirmed beside"
        return Plan(inventory.name, (said, Step("tune", "confirm", why)))
    again = bench.plan(inventory, transport, take_gpu=take_gpu, sweep=tune.confirming(choice))
    return Plan(inventory.name, (said, *announced(again, inventory, transport).steps))


def writing(tune: Tune, inventory: Inventory, transport: Transport) -> Plan:
    """The file that serve reads. UndecidedError before everything was measured; UsageError if it says otherwise already."""
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
