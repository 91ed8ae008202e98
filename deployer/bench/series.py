"""The rounds of one cell as one: the middle and the spread, greedy matches, and how noisy a sweep was. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

from deployer.bench.model import ArmLine, BenchFile, Cell, Conditions, Measurement

Metric = Callable[[Measurement], float]


@dataclass(frozen=True, order=True)
class Place:
    """What all arms are compared at."""

    prompts: str
    temperature: str
    concurrency: int

    @classmethod
    def of(cls, cell: Conditions) -> Place:
        return cls(cell.prompts, cell.temperature, cell.concurrency)


def sampling(temperature: str) -> str:
    """A temperature in words."""
    return {"0": "greedy", "own": "the model's own sampling"}.get(temperature, f"temperature {temperature}")


@dataclass(frozen=True)
class Spread:
    """Over the rounds: the median, the least and the largest."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class Series:
    """One arm at one place: its rounds, in their order."""

    arm: str
    place: Place
    rounds: tuple[Measurement, ...]

    def values(self, metric: Metric) -> tuple[float, ...]:
        return tuple(metric(one) for one in self.rounds)

    def spread(self, metric: Metric) -> Spread:
        return Spread.of(self.values(metric))


@dataclass(frozen=True)
class Match:
    """Share of greedy answers that are the baseline's, letter for letter. `control` is the baseline's own share with
    itself, from one round to another; None where there is one round only.
    """

    share: float
    control: float | None


def series(file: BenchFile) -> tuple[Series, ...]:
    """All of a file's."""
    return gathered(file.arms, file.cells)


def gathered(arms: Iterable[ArmLine], cells: Sequence[Cell]) -> tuple[Series, ...]:
    """All that were measured, by place in the sweep's order and then by arm in theirs."""
    order = [arm.name for arm in arms]
    found: dict[tuple[Place, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((Place.of(cell.conditions), cell.conditions.arm), []).append(cell)
    sets = list(dict.fromkeys(cell.conditions.prompts for cell in cells))

    def rank(key: tuple[Place, str]) -> tuple[int, str, int, int]:
        place, arm = key
        return sets.index(place.prompts), place.temperature, place.concurrency, order.index(arm)

    return tuple(
        Series(
            arm, place, tuple(one.measured for one in sorted(found[place, arm], key=lambda one: one.conditions.round))
        )
        for place, arm in sorted(found, key=rank)
    )


def match(one: Series, baseline: Series | None) -> Match | None:
    """None without a baseline, and where sampling makes every answer another."""
    if baseline is None or not all(round_.outputs for round_ in (*one.rounds, *baseline.rounds)):
        return None
    others = [_equal(mine.outputs, its.outputs) for mine in one.rounds for its in baseline.rounds]
    itself = [_equal(a.outputs, b.outputs) for a, b in combinations(baseline.rounds, 2)]
    control = fmean(itself) if itself else None
    if one.arm == baseline.arm:
        return Match(control, control) if control is not None else None
    return Match(fmean(others), control)


def _equal(mine: Sequence[str], its: Sequence[str]) -> float:
    return sum(a == b for a, b in zip(mine, its, strict=False)) / max(len(mine), len(its))


def noise(found: Iterable[Series], metric: Metric) -> Noise | None:
    """How far one round of the same lies from another: pooled over all places and arms. None without a second round."""
    logs = [[math.log(value) for value in one.values(metric) if value > 0] for one in found]
    return pooled([values for values in logs if len(values) > 1])


@dataclass(frozen=True)
class Noise:
    """`deviation`: standard deviation of a round's logarithm, so about its relative error; `freedom`: degrees of it."""

    deviation: float
    freedom: int


def pooled(groups: Sequence[Sequence[float]]) -> Noise | None:
    """The deviation within groups of equal spread. None where no group has two values."""
    freedom = sum(len(group) - 1 for group in groups)
    if not freedom:
        return None
    squares = sum((value - fmean(group)) ** 2 for group in groups for value in group)
    return Noise(math.sqrt(squares / freedom), freedom)


def geometric(values: Iterable[float]) -> float:
    """Geometric mean: what ratios are averaged by. 0 as soon as one of them is."""
    values = list(values)
    return math.exp(fmean(math.log(value) for value in values)) if all(values) else 0.0
