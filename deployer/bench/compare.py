"""Two sweeps beside each other: what changed by more than noise. Pure.

Rounds are what noise is judged by: requests within a round share their prompts and their engine. There are few of them,
and a rank test over three and three cannot go below 1 in 20, while a sweep has a hundred numbers to compare. So the
deviation of a round is pooled over the places and arms of both sweeps, metric by metric, and the level is divided by
the number of comparisons: two sweeps of the same thing are told apart in one case of twenty, however large they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from deployer.bench.model import BenchFile, Conditions
from deployer.bench.series import Metric, Noise, Place, Series, match, pooled, series
from deployer.bench.verdict import speed, tpot
from deployer.errors import UsageError

LEVEL = 0.05
TOLERANCE = 0.03
ACCEPTANCE = "acceptance length"


@dataclass(frozen=True)
class Watched:
    """One number that may get worse. `sign` is 1 where more is worse."""

    name: str
    metric: Metric
    sign: int


WATCHED = (
    Watched("tokens/s", speed, -1),
    Watched("TPOT p50", tpot, 1),
    Watched("TTFT p50", lambda seen: seen.ttft.p50, 1),
    Watched("end to end p50", lambda seen: seen.e2e.p50, 1),
    Watched(ACCEPTANCE, lambda seen: seen.acceptance_length, -1),
)


@dataclass(frozen=True)
class Change:
    """One number, then and now. `low` to `high` is where now / then lies by all that the rounds say; None where there
    is no second round of anything to say it.
    """

    arm: str
    place: Place
    name: str
    then: float
    now: float
    low: float | None
    high: float | None
    sign: int
    tolerance: float

    @property
    def ratio(self) -> float:
        return self.now / self.then

    @property
    def verdict(self) -> str:
        """worse, better, same, or unknown where noise is."""
        if self.low is None or self.high is None:
            return "unknown"
        towards_more, towards_less = self.low > 1, self.high < 1
        if abs(self.ratio - 1) < self.tolerance or not (towards_more or towards_less):
            return "same"
        return "worse" if (self.sign > 0) == towards_more else "better"


@dataclass(frozen=True)
class Comparison:
    """All changes in the sweep's order; `differs` is what else is not the same, `alone` what only one of them has."""

    changes: tuple[Change, ...]
    differs: tuple[str, ...]
    alone: tuple[str, ...]

    def of(self, verdict: str) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.verdict == verdict)


def compare(then: BenchFile, now: BenchFile, *, tolerance: float = TOLERANCE) -> Comparison:
    """Everything that both measured under the same conditions. Raises UsageError when that is nothing."""
    old, new = _by_conditions(then), _by_conditions(now)
    both = [key for key in old if key in new]
    if not both:
        raise UsageError(
            "the two sweeps have no measurement in common",
            where=f"{then.subject.host} and {now.subject.host}",
            remedy="compare sweeps with the same arms, prompts, temperature, concurrency and [bench] lengths",
        )
    pairs = [(old[key], new[key]) for key in both]
    count = len(pairs) * (len(WATCHED) + 1)
    changes = [change for watched in WATCHED for change in _changes(watched, pairs, count, tolerance)]
    changes += _equality(list(old.values()), list(new.values()), pairs, count, tolerance)
    order = {(one.arm, one.place): index for index, (one, _) in enumerate(pairs)}
    changes.sort(key=lambda change: order[change.arm, change.place])
    alone = [f"{_named(key)} only in the first" for key in old if key not in new]
    alone += [f"{_named(key)} only in the second" for key in new if key not in old]
    return Comparison(tuple(changes), tuple(_differences(then, now)), tuple(alone))


_OF_A_ROUND = ("round", "seed")


def _by_conditions(file: BenchFile) -> dict[Conditions, Series]:
    """Series by what they were measured under; two of the same place under other conditions are two."""
    under = {(Place.of(cell.conditions), cell.conditions.arm): cell.conditions for cell in file.cells}
    found = series(file)
    return {_alike(under[one.place, one.arm]): one for one in found}


def _alike(cell: Conditions) -> Conditions:
    return cell.model_copy(update=dict.fromkeys(_OF_A_ROUND, 0))


def _named(cell: Conditions) -> str:
    return f"{cell.arm}, {cell.prompts}, T={cell.temperature}, {cell.concurrency} at a time"


def _changes(watched: Watched, pairs: Sequence[tuple[Series, Series]], count: int, tolerance: float) -> list[Change]:
    """Greedy rounds repeat each other and sampled ones do not: each temperature has a noise of its own."""
    made = []
    for temperature in dict.fromkeys(old.place.temperature for old, _ in pairs):
        here = [pair for pair in pairs if pair[0].place.temperature == temperature and _has(watched, pair)]
        logs = [(_logs(watched, old), _logs(watched, new)) for old, new in here]
        seen = pooled([values for pair in logs for values in pair if len(values) > 1])
        made += [
            _change(watched, old, before, after, _reach(seen, before, after, count), tolerance)
            for (old, _), (before, after) in zip(here, logs, strict=True)
        ]
    return made


def _has(watched: Watched, pair: tuple[Series, Series]) -> bool:
    """An arm that drafts nothing has no acceptance."""
    return watched.name != ACCEPTANCE or any(seen.drafts for one in pair for seen in one.rounds)


def _logs(watched: Watched, one: Series) -> tuple[float, ...]:
    return tuple(math.log(max(value, 1e-9)) for value in one.values(watched.metric))


def _change(
    watched: Watched, old: Series, before: Sequence[float], after: Sequence[float], wide: float | None, tolerance: float
) -> Change:
    middle = fmean(after) - fmean(before)
    return Change(
        arm=old.arm,
        place=old.place,
        name=watched.name,
        then=math.exp(fmean(before)),
        now=math.exp(fmean(after)),
        low=None if wide is None else math.exp(middle - wide),
        high=None if wide is None else math.exp(middle + wide),
        sign=watched.sign,
        tolerance=tolerance,
    )


def _reach(seen: Noise | None, before: Sequence[float], after: Sequence[float], count: int) -> float | None:
    """Half the width of the interval of a difference of two means."""
    if seen is None:
        return None
    # A place may be noisier than the others (a batch that is never full): its own deviation counts if it is larger.
    own = pooled([values for values in (before, after) if len(values) > 1])
    deviation = max(seen.deviation, own.deviation if own else 0.0)
    error = deviation * math.sqrt(1 / len(before) + 1 / len(after))
    return student(1 - LEVEL / 2 / count, seen.freedom) * error


def student(probability: float, freedom: int) -> float:
    """Student's t: the quantile, by the expansion in the normal one (Abramowitz and Stegun 26.7.5); exact for 1 and 2."""
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        share = 2 * probability - 1
        return share * math.sqrt(2 / (1 - share * share))
    z, n = NormalDist().inv_cdf(probability), freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def _equality(
    old: Sequence[Series], new: Sequence[Series], pairs: Sequence[tuple[Series, Series]], count: int, tolerance: float
) -> list[Change]:
    """Share of greedy answers equal to plain decoding's, as a number that may fall. Answers are counted, so a
    proportion's own error is its noise.
    """
    made = []
    z = NormalDist().inv_cdf(1 - LEVEL / 2 / count)
    for before, after in pairs:
        then, now = (_match(one, among) for one, among in ((before, old), (after, new)))
        if before.arm == "ar" or not then or now is None:
            continue
        answers = [sum(len(seen.outputs) for seen in one.rounds) for one in (before, after)]
        mean = (then + now) / 2
        wide = z * math.sqrt(mean * (1 - mean) * sum(1 / number for number in answers))
        low, high = (now - wide) / then, (now + wide) / then
        made.append(Change(before.arm, before.place, "equal answers", then, now, low, high, -1, tolerance))
    return made


def _match(one: Series, among: Sequence[Series]) -> float | None:
    baseline = next((other for other in among if other.arm == "ar" and other.place == one.place), None)
    found = match(one, baseline)
    return found.share if found else None


def _differences(then: BenchFile, now: BenchFile) -> list[str]:
    """What of the subject is not the same: a reason for a change, or one to mistrust it."""
    old, new = then.subject, now.subject
    pairs = [
        ("host", old.host, new.host),
        ("release", old.release, new.release),
        ("target", old.target.fingerprint[:12], new.target.fingerprint[:12]),
        ("drafter", old.drafter.fingerprint[:12], new.drafter.fingerprint[:12]),
        ("GPUs", ", ".join(old.machine.gpus) or "none", ", ".join(new.machine.gpus) or "none"),
        ("driver", old.machine.driver or "none", new.machine.driver or "none"),
        ("processor", old.machine.processor, new.machine.processor),
        ("kernel", old.machine.kernel, new.machine.kernel),
    ]
    names = {**old.versions, **new.versions}
    pairs += [(name, old.versions.get(name, "none"), new.versions.get(name, "none")) for name in names]
    return [f"{name}: {was} before, {is_} now" for name, was, is_ in pairs if was != is_]
