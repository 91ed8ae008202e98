"""Which engine, and how many tokens of each request it verifies at which batch size. Pure.

An engine is started one way and can change nothing but the number of tokens while it runs. So the best tokens are taken
for each number of requests and each engine, and then the engine that is the best over all of them. What is more (nodes,
or an engine that does more) has to be faster by more than what may be chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from deployer.bench.arms import AR, name_of
from deployer.bench.figures import family_of, together
from deployer.bench.model import ArmLine
from deployer.bench.series import Series, geometric
from deployer.bench.verdict import Best, best_at, speed
from deployer.errors import UsageError
from deployer.serve.decoding import MAX_BUDGET, Decoding, TreeOrChain, autoregressive, tiered
from deployer.tune.model import Choice, Pick, Seen

_ENGINES: tuple[TreeOrChain, ...] = ("chain", "tree")


def candidates(width: int) -> tuple[str, ...]:
    """The arms to measure for a drafter of `width`: plain decoding, chains, and trees from no node to the most there are.

    One that predicts more than a tree may have has no tree.
    """
    half = f"{max(width // 2, 1)}"
    budgets = [width]
    while 2 * budgets[-1] + 1 <= MAX_BUDGET:
        budgets.append(2 * budgets[-1] + 1)
    trees = ("tree:0", f"tree:{half}", *map("tree:{}".format, budgets)) if width <= MAX_BUDGET else ()
    return tuple(dict.fromkeys((AR, f"chain:{half}", f"chain:{width}", *trees)))


def check(lines: Sequence[ArmLine]) -> None:
    """Raises UsageError for arms that no measurement could be chosen from."""
    if fixed := [line.name for line in lines if "@" in line.name]:
        remedy = "name them with one number each: how they change with the batch is what is looked for"
        raise UsageError(f"{', '.join(fixed)} is a table already", where="--arms", remedy=remedy)
    drafting = [line for line in lines if family_of(line.name) in _ENGINES and line.tokens]
    if not drafting or all(line.name != AR for line in lines):
        raise _nothing()


def _nothing() -> UsageError:
    return UsageError("there is nothing to choose from", where="--arms", remedy="ar and some of chain:K and tree:B")


def choose(found: Sequence[Series], lines: Iterable[ArmLine], width: int) -> Choice:
    """Raises UsageError when plain decoding, or all else, was not measured."""
    tokens = {line.name: line.tokens for line in lines}
    bests = bests_of(found)
    ways: dict[str, tuple[Decoding, tuple[str, ...]]] = {AR: (autoregressive(), (AR,) * len(bests))}
    for kind in _ENGINES:
        mine = [arm for arm in tokens if family_of(arm) == kind and all(arm in best.means for best in bests)]
        if any(tokens[arm] for arm in mine):
            ways[kind] = _tiers(kind, bests, {arm: tokens[arm] for arm in mine}, width)
    if any(AR not in best.means for best in bests) or len(ways) == 1:
        raise _nothing()
    speeds = {way: [best.means[arm] for best, arm in zip(bests, arms, strict=True)] for way, (_, arms) in ways.items()}
    how, arms = ways[simplest(speeds, [best.doubt for best in bests])]
    picks = (_pick(best, arm, tokens, found) for best, arm in zip(bests, arms, strict=True))
    return Choice(arm=name_of(how), picks=tuple(picks))


def bests_of(found: Sequence[Series]) -> list[Best]:
    """One for each number of requests, from the fewest on, at which arms can be compared."""
    counts = sorted({one.place.concurrency for one in found})
    return [best for count in counts if (best := best_at(found, count))]


def simplest(speeds: Mapping[str, Sequence[float]], doubts: Sequence[float]) -> str:
    """Of several ways, the simplest first, the first that is not slower than the fastest by more than may be chance.

    `speeds` has one for each number of requests, all of which count the same; `doubts` likewise.
    """
    means = {way: geometric(own) for way, own in speeds.items()}
    doubt = math.exp(math.hypot(*map(math.log, doubts)) / len(doubts))
    return next(way for way, mean in means.items() if max(means.values()) <= mean * doubt)


def _tiers(
    kind: TreeOrChain, bests: Sequence[Best], tokens: Mapping[str, int], width: int
) -> tuple[Decoding, tuple[str, ...]]:
    """The tokens of one engine by batch size, and the arms that they are those of."""
    arms = list[str]()
    for best in bests:
        # A request alone has drafts, or the gate could not see that they are accepted.
        usable = sorted((arm for arm in tokens if arms or tokens[arm]), key=lambda arm: tokens[arm])
        arms.append(simplest({arm: [best.means[arm]] for arm in usable}, [best.doubt]))
    return tiered(kind, width, [(tokens[arm], best.concurrency) for arm, best in zip(arms, bests, strict=True)]), tuple(
        arms
    )


def _pick(best: Best, arm: str, tokens: Mapping[str, int], found: Sequence[Series]) -> Pick:
    return Pick(
        concurrency=best.concurrency,
        arm=arm,
        tokens=tokens[arm],
        fastest=best.arm,
        equals=tuple(best.equals),
        doubt=best.doubt,
        seen=seen(best, tokens, found),
    )


def seen(best: Best, tokens: Mapping[str, int], found: Sequence[Series]) -> tuple[Seen, ...]:
    """What every arm showed there."""
    return tuple(_seen(arm, tokens[arm], best, found) for arm in tokens if arm in best.means)


def _seen(arm: str, tokens: int, best: Best, found: Sequence[Series]) -> Seen:
    here = [one for one in found if one.arm == arm and one.place.concurrency == best.concurrency]
    speeds = together(here, speed)
    return Seen(
        arm=arm,
        tokens=tokens,
        output_tokens_per_second=best.means[arm],
        low=speeds.low,
        high=speeds.high,
        step_ms=together(here, lambda one: one.step_ms).middle,
        acceptance_length=fmean(one.acceptance_length for series in here for one in series.rounds),
    )
