"""Budgets between those that were measured: acceptance by counters of the widest tree, cost by interpolation. Pure.

The counters say which nodes of a step's tree were accepted, and a smaller budget's tree is the first of them. So one tree's
steps say what every smaller budget would have accepted of the same steps. That is biased: a shorter step begins the next one
elsewhere. Where a smaller budget was measured, too, the difference is seen, and corrected between the two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest

from deployer.bench.figures import family_of
from deployer.bench.model import Measurement
from deployer.bench.series import Series
from deployer.tune.model import Curve, Guess, Pick, Seen


def curve(found: Sequence[Series], tokens: Mapping[str, int]) -> Curve | None:
    """Acceptance by budget, from the widest tree that was measured; None without one that counts its nodes."""
    trees = _trees(found, tokens)
    if not trees:
        return None
    arm = trees[-1]
    rounds = [one for series in found if series.arm == arm for one in series.rounds]
    shares = _by_node(rounds)
    if not shares:
        return None
    shares += [0.0] * (tokens[arm] - len(shares))
    lengths = tuple(accumulate(shares, initial=1.0))[1:]
    errors = [abs(lengths[tokens[other] - 1] / _length(found, other) - 1) for other in trees[:-1]]
    return Curve(arm=arm, acceptance_lengths=lengths, largest_error=max(errors, default=None))


def guesses(made: Curve, picks: Sequence[Pick]) -> tuple[Guess, ...]:
    """The budgets that were not measured and should be faster, by more than chance, than every tree that was."""
    return tuple(guess for pick in picks if (guess := _guess(made, pick)))


def _guess(made: Curve, pick: Pick) -> Guess | None:
    # Where an answer is one token there is none after the first, and no step was timed.
    timed = (one for one in pick.seen if family_of(one.arm) == "tree" and one.tokens and one.step_ms)
    trees = sorted(timed, key=lambda one: one.tokens)
    if len(trees) < 2:
        return None
    between = range(trees[0].tokens, min(trees[-1].tokens, len(made.acceptance_lengths)) + 1)
    speeds = {budget: _Between.of(trees, budget).speed(made.acceptance_lengths) for budget in between}
    best = max(speeds, key=lambda budget: speeds[budget])
    fastest = max(trees, key=lambda one: one.output_tokens_per_second)
    gain = speeds[best] / fastest.output_tokens_per_second
    return (
        Guess(concurrency=pick.concurrency, tokens=best, beside=fastest.arm, gain=gain) if gain > pick.doubt else None
    )


@dataclass(frozen=True)
class _Between:
    """A budget, the measured ones on both sides of it, and how far it is on the way."""

    budget: int
    low: Seen
    high: Seen
    share: float

    @classmethod
    def of(cls, trees: Sequence[Seen], budget: int) -> _Between:
        place = max(1, bisect_left([one.tokens for one in trees], budget))
        low, high = trees[place - 1], trees[place]
        return cls(budget, low, high, (budget - low.tokens) / (high.tokens - low.tokens))

    def speed(self, lengths: Sequence[float]) -> float:
        """Tokens a second: those of a step by the time of a step, both as on the two sides where they meet them."""

        def mixed(low: float, high: float) -> float:
            return low + self.share * (high - low)

        per_token = [
            one.output_tokens_per_second / lengths[one.tokens - 1] * one.step_ms for one in (self.low, self.high)
        ]
        return mixed(*per_token) * lengths[self.budget - 1] / mixed(self.low.step_ms, self.high.step_ms)


def _trees(found: Sequence[Series], tokens: Mapping[str, int]) -> list[str]:
    """The trees of one budget that were measured, the narrowest first."""
    arms = {one.arm for one in found if family_of(one.arm) == "tree" and "@" not in one.arm and tokens[one.arm]}
    return sorted(arms, key=lambda arm: tokens[arm])


def _by_node(rounds: Sequence[Measurement]) -> list[float]:
    trees = sum(one.trees for one in rounds)
    counted = ([share * one.trees for share in one.accepted_by_node] for one in rounds)
    return [sum(node) / trees for node in zip_longest(*counted, fillvalue=0.0)] if trees else []


def _length(found: Sequence[Series], arm: str) -> float:
    """Tokens a step, over everything that was measured of it."""
    rounds = [one for series in found if series.arm == arm for one in series.rounds]
    drafts = sum(one.drafts for one in rounds)
    return 1 + sum((one.acceptance_length - 1) * one.drafts for one in rounds) / drafts if drafts else 1.0
