"""The stages of `tune`: measure, confirm what was chosen, write it down. Each is planned by what the one before left."""

from __future__ import annotations

from collections.abc import Sequence
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
from deployer.inventory.given import SEQS, most_requests
from deployer.inventory.model import Inventory
from deployer.plan.step import Plan, Step
from deployer.serve import tuned
from deployer.serve.decoding import Decoding, drafter_width
from deployer.serve.tuned import Tuned
from deployer.transport.base import Transport
from deployer.tune import file
from deployer.tune.choose import candidates, check
from deployer.tune.found import Found, Part, Tune, found, measured
from deployer.tune.model import Tuning

_USUAL_SEQS = 8


def usual_concurrency(inventory: Inventory) -> tuple[int, ...]:
    """1, 2, 4 ... to the most requests that a step takes: [serve.options] max-num-seqs, else 8."""
    most = most_requests(inventory) or _USUAL_SEQS
    return tuple(sorted({*(1 << power for power in range(most.bit_length())), most}))


def _fit_into_a_step(counts: Sequence[int], inventory: Inventory) -> None:
    """UsageError for requests of which some would only wait: their speed would be that of fewer."""
    most = most_requests(inventory)
    over = [str(count) for count in counts if most is not None and count > most]
    if over:
        what = f"{', '.join(over)} requests are never in a step together: [serve.options] {SEQS} is {most}"
        raise UsageError(what, where="--concurrency", remedy=f"at most {most}, or change {SEQS}")


def usual_arms(inventory: Inventory) -> tuple[str, ...]:
    """See deployer.tune.choose."""
    return candidates(drafter_width(inventory))


def measuring(tune: Tune, inventory: Inventory, transport: Transport, *, take_gpu: bool = False) -> Plan:
    """Every candidate at every number of requests, as `bench` would; and at once, while the service is away, the choice."""
    check(lines(inventory, tune.sweep.arms))
    _fit_into_a_step(tune.sweep.concurrency, inventory)
    file.check(tune.file)
    made = _planned(tune, inventory, transport, take_gpu=take_gpu)
    going_on = Plan(inventory.name, tuple(_going_on(step, tune, inventory, transport) for step in made.steps))
    return announced(going_on, inventory, transport)


def _planned(
    tune: Tune, inventory: Inventory, transport: Transport, *, take_gpu: bool, sweep: Sweep | None = None
) -> Plan:
    """The bench's plan. UsageError when it would measure for a file that must not be replaced."""
    made = bench.plan(inventory, transport, take_gpu=take_gpu, sweep=sweep or tune.sweep)
    if tune.file.is_file() and not tune.overwrite and any(isinstance(step.action, Measuring) for step in made.steps):
        raise file.taken(tune.file, "may say otherwise than what is measured now")
    return made


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
    again = _planned(tune, inventory, transport, take_gpu=take_gpu, sweep=tune.confirming(choice))
    return Plan(inventory.name, (said, *announced(again, inventory, transport).steps))


def writing(tune: Tune, inventory: Inventory, transport: Transport) -> Plan:
    """The file that serve reads. UndecidedError before everything was measured; UsageError if it says otherwise already.

    One that decides the same is left as it is: its comments may be somebody's.
    """
    new, path = found(tune, inventory, transport), tune.file
    file.check(path)
    values, before = _values(new), file.read(path)
    same = before is not None and _decision(before) == _decision(values)
    if before is not None and same and (_basis(before) == _basis(values) or not tune.overwrite):
        old = "" if _basis(before) == _basis(values) else f"; measured {before.when}: --overwrite says when it was now"
        return Plan(inventory.name, (Step("tune", path.name, f"{path} says so: {_title(new.tuning)}{old}"),))
    if path.is_file() and not tune.overwrite:
        raise file.taken(path, f"is not what was found now: {_title(new.tuning)}")
    why = f"{_title(new.tuning)}; {_reading(path, inventory)}"
    write = partial(file.write, path, _text(new, values, inventory))
    return Plan(inventory.name, (Step("tune", f"write {path.name}", why, write),))


def _decision(values: Tuned) -> object:
    return values.kind, values.tokens, values.table


def _basis(values: Tuned) -> object:
    return values.host, values.release, values.drafter


def _title(tuning: Tuning) -> str:
    return str(Decoding(tuning.kind, tuning.tokens, tuning.table))


def _reading(path: Path, inventory: Inventory) -> str:
    """What makes serve read it."""
    if inventory.tree.tuned == path:
        return f"ddtree-deploy serve {inventory.name} reads it"
    old = "table" if inventory.tree.table else "a budget"
    return f'serve reads it once [tree] says tuned = "{path.name}" in place of {old}'


def _values(new: Found) -> Tuned:
    subject, last = new.file.subject, max(cell.measured.when for cell in new.file.cells)
    return Tuned(
        kind=new.tuning.kind,
        tokens=new.tuning.tokens,
        table=new.tuning.table,
        host=subject.host,
        when=last,
        release=subject.release,
        drafter=subject.drafter.fingerprint,
    )


def _text(new: Found, values: Tuned, inventory: Inventory) -> str:
    head = f"Written by `ddtree-deploy tune {inventory.name}`; read by `serve` if the inventory's [tree] names it."
    return tuned.text(values, (head, "", *new.text().splitlines()))
