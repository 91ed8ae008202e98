"""A sweep while it runs: start after start, each cell kept as soon as it is measured; and the service put back after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from shlex import quote

from deployer.bench.client import TIMEOUT
from deployer.bench.estimate import duration, estimate
from deployer.bench.model import Cell, Conditions
from deployer.bench.run import Runner
from deployer.bench.store import Store
from deployer.bench.sweep import Load, Sweep
from deployer.errors import DeployError, TransferError
from deployer.inventory.model import Inventory
from deployer.plan.signals import held_back
from deployer.plan.step import Progress
from deployer.serve.service import Service
from deployer.serve.switch import wait_for_memory
from deployer.serve.way_back import WayBack


@dataclass(frozen=True)
class Measuring:
    """The step's action. `ended` judges everything once it is measured; `after` says what to measure then, in the
    same absence of the service, and `after_seconds` how long that may take at most.
    """

    runner: Runner
    store: Store
    sweep: Sweep
    starts: tuple[Load, ...]
    known: tuple[Cell, ...]
    stops_service: bool
    ended: Callable[[tuple[Cell, ...]], None] = field(default=lambda cells: None)
    after: Callable[[tuple[Cell, ...]], Measuring | None] | None = None
    after_seconds: float = 0.0

    def __call__(self, progress: Progress) -> None:
        service = Service.of(self.runner.inventory, self.runner.transport)
        way = WayBack(self.runner.transport, service.layout, self._longest)
        running = self.stops_service and service.state().running
        try:
            if running:
                progress.say("stopping the service for the time of the bench")
                way.keep(self._starting_again(service))
                service.stop()
            self._all(service, way if running else None, progress)
        finally:
            if running:
                progress.say("starting the service again; `ddtree-deploy status` says when it serves")
                with held_back():
                    way.take()
                    way.end()

    @property
    def _longest(self) -> float:
        """Seconds in which the sweep, and what comes after it, has ended or is lost."""
        cells = sum(len(load.cells) for load in self.starts)
        return longest(self.runner.inventory, len(self.starts), cells) + self.after_seconds

    def _all(self, service: Service, way: WayBack | None, progress: Progress) -> None:
        cells = self._measure(service, way, progress)
        self.ended(cells)
        more = self.after(cells) if self.after else None
        if more is not None:
            replace(more, stops_service=self.stops_service)._all(service, way, progress)

    def _starting_again(self, service: Service) -> str:
        """What the host runs when the bench has ended, or whoever ran it is gone."""
        return f"#!/bin/sh\n{self.runner.clearing}\nsystemctl start --no-block {quote(service.layout.unit)}\n"

    def _measure(self, service: Service, way: WayBack | None, progress: Progress) -> tuple[Cell, ...]:
        """One arm that fails does not cost the others theirs; it is the error at the end."""
        cells, failures = list(self.known), dict[str, DeployError]()
        for number, load in enumerate(self.starts):
            if load.arm in failures:
                continue
            left = estimate(self.starts[number:], cells, self.runner.inventory.install.build)
            progress.say(f"arm {self.store.arms[load.arm].line.title}: start {number + 1} of {len(self.starts)}, "
                         f"about {duration(left.seconds)} left")  # fmt: skip
            _still_away(way)
            if self.stops_service:
                wait_for_memory(service, progress)
            try:
                self._load(load, cells, way, progress)
            except TransferError:
                raise
            except DeployError as error:
                _still_away(way)  # else it was the host that ended the arm
                progress.say(f"arm {load.arm} failed: {error.what}")
                failures[load.arm] = error
        if failures:
            raise _summed(failures)
        return tuple(cells)

    def _load(self, load: Load, cells: list[Cell], way: WayBack | None, progress: Progress) -> None:
        sets = {prompts.name: prompts for prompts in self.sweep.sets}
        total = len(self.known) + sum(len(one.cells) for one in self.starts)
        with self.runner.up(self.store.arms[load.arm], progress) as measure:
            for cell in load.cells:
                progress.say(f"[{len(cells) + 1} of {total}] {load.arm}: {describe(cell)}")
                seen = measure(cell, sets[cell.prompts])
                _still_away(way)  # beside the service it would be no measurement
                cells.append(seen)
                self.store.write(cells[-1])
                progress.say(short(cells[-1]))


def _still_away(way: WayBack | None) -> None:
    """TransferError when the host has gone back by itself: from then on the service is there, too."""
    if way is not None and not way.stands():
        raise TransferError(
            "the connection was silent or lost, or the host restarted, and the host started the service again by itself",
            where=way.transport.name,
            remedy="run the same again: what was measured before is kept",
        )


def longest(inventory: Inventory, loads: int, cells: int) -> float:
    """Seconds for so much: every start and every client at its own limit."""
    return loads * inventory.serve.gate_timeout + cells * TIMEOUT


def describe(cell: Conditions) -> str:
    """A cell in words, without its arm."""
    return (
        f"{cell.requests} requests of {cell.prompts}, temperature {cell.temperature}, {cell.concurrency} at a time, "
        f"round {cell.round}"
    )


def short(cell: Cell) -> str:
    """What it showed, in a line."""
    seen = cell.measured
    return (
        f"TPOT {seen.tpot.p50:.1f} ms, {seen.output_tokens_per_second:.0f} tokens/s, "
        f"acceptance length {seen.acceptance_length:.2f}"
    )


def _summed(failures: dict[str, DeployError]) -> DeployError:
    first = next(iter(failures.values()))
    if len(failures) == 1:
        return first
    others = "; ".join(f"{arm}: {error.what}" for arm, error in failures.items())
    return DeployError(f"{len(failures)} arms failed: {others}", where=first.where, remedy=first.remedy)
