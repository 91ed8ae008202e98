"""Which arm to serve, in one sentence; and what the sentence does not say. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from deployer.bench.model import BenchFile, Measurement
from deployer.bench.series import Series, geometric, noise


def speed(seen: Measurement) -> float:
    """Output tokens a second, all requests together: what is compared."""
    return seen.output_tokens_per_second


def tpot(seen: Measurement) -> float:
    return seen.tpot.p50


@dataclass(frozen=True)
class Verdict:
    """`arm` is None where the numbers do not decide."""

    arm: str | None
    sentence: str


@dataclass(frozen=True)
class Best:
    """At one concurrency: every arm's tokens a second over all places, and how large a ratio of two may be by chance."""

    concurrency: int
    means: dict[str, float]
    doubt: float

    @property
    def arm(self) -> str:
        return max(self.means, key=lambda arm: self.means[arm])

    @property
    def equals(self) -> list[str]:
        """The arms that are as fast within the noise."""
        return [arm for arm in self.means if arm != self.arm and self.over(arm) < self.doubt]

    def over(self, arm: str) -> float:
        """How many times as fast as `arm` the best is."""
        return self.means[self.arm] / self.means[arm]


def verdict(file: BenchFile, found: Sequence[Series]) -> Verdict:
    """By output tokens a second over all prompts and temperatures, concurrency by concurrency."""
    titles = {arm.name: arm.title for arm in file.arms}
    if file.subject.build == "cpu":
        return _by_acceptance(found, titles)
    bests = [best for count in sorted({one.place.concurrency for one in found}) if (best := best_at(found, count))]
    if not bests:
        return Verdict(None, "Nothing to recommend: no two arms were measured under the same conditions.")
    # The arm that is the best, or as good, at the most concurrencies; of several the one that wins outright more often.
    arms = list(dict.fromkeys(arm for best in bests for arm in best.means))
    arm = max(arms, key=lambda arm: (sum(arm in (best.arm, *best.equals) for best in bests), _wins(bests, arm)))
    mine = [best for best in bests if best.arm == arm or arm in best.equals]
    others = [best for best in bests if best not in mine]
    return Verdict(
        arm, "; ".join([f"Serve {titles[arm]}: {_gain(mine, arm, titles)}", *_exceptions(others, arm, titles)]) + "."
    )


def _wins(bests: Sequence[Best], arm: str) -> int:
    return sum(best.arm == arm for best in bests)


def best_at(found: Sequence[Series], concurrency: int) -> Best | None:
    """None where no two arms were measured under the same conditions."""
    here = [one for one in found if one.place.concurrency == concurrency]
    arms = list(dict.fromkeys(one.arm for one in here))
    values = {(one.arm, one.place): one.spread(speed).middle for one in here}
    # Only where every arm was measured: an arm that is missing at the slow prompts would look fast.
    common = [
        place for place in dict.fromkeys(one.place for one in here) if all((arm, place) in values for arm in arms)
    ]
    if len(arms) < 2 or not common:
        return None
    means = {arm: geometric(values[arm, place] for place in common) for arm in arms}
    return Best(concurrency, means, math.exp(_doubt(here, len(common))))


def _doubt(here: Sequence[Series], places: int) -> float:
    """Twice the standard error of a difference of two means, as a logarithm; 2 % where there was one round only."""
    seen, rounds = noise(here, speed), min(len(one.rounds) for one in here)
    return 0.02 if seen is None else 2 * seen.deviation * math.sqrt(2 / (rounds * places))


def _gain(mine: Sequence[Best], arm: str, titles: dict[str, str]) -> str:
    text = f"with {_requests(mine)} at a time it gives the most tokens a second"
    if arm != "ar" and all("ar" in best.means for best in mine):
        ratios = sorted(f"{best.means[arm] / best.means['ar']:.2f}" for best in mine)
        text += f", {ratios[0] if ratios[0] == ratios[-1] else f'{ratios[0]} to {ratios[-1]}'} times plain decoding"
    same = {other: [best for best in mine if other in (best.arm, *best.equals)] for other in titles if other != arm}
    ties = [f"with {_requests(at)} {titles[other]}" for other, at in same.items() if at]
    return text + (f" ({', '.join(ties)} cannot be told from it)" if ties else "")


def _exceptions(others: Sequence[Best], arm: str, titles: dict[str, str]) -> list[str]:
    return [f"with {_requests([best])} {titles[best.arm]} is {best.over(arm):.2f} times as fast" for best in others]


def _requests(bests: Sequence[Best]) -> str:
    counts = [str(best.concurrency) for best in bests]
    listed = counts[0] if len(counts) == 1 else f"{', '.join(counts[:-1])} and {counts[-1]}"
    return f"{listed} request{'' if counts == ['1'] else 's'}"


def _by_acceptance(found: Sequence[Series], titles: dict[str, str]) -> Verdict:
    lengths = {
        arm: geometric(seen.acceptance_length for one in found if one.arm == arm for seen in one.rounds)
        for arm in dict.fromkeys(one.arm for one in found)
    }
    ranked = sorted(lengths, key=lambda arm: lengths[arm], reverse=True)
    if not ranked:
        return Verdict(None, "Nothing was measured.")
    best, *rest = ranked
    beside = f", {titles[rest[0]]} {lengths[rest[0]]:.2f}" if rest else ""
    return Verdict(
        None,
        "Which arm to serve cannot be said from an interpreter's times; "
        f"{titles[best]} accepts the most tokens a step: {lengths[best]:.2f}{beside}.",
    )
