"""The choice beside plain decoding and the best chains, in rounds that nothing was chosen by. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deployer.bench.arms import AR
from deployer.bench.figures import family_of
from deployer.bench.model import ArmLine
from deployer.bench.series import Series
from deployer.tune.choose import bests_of, seen, simplest
from deployer.tune.model import Choice, Trial


def rivals(choice: Choice) -> tuple[str, ...]:
    """Plain decoding, every chain that is the best chain somewhere, and what was chosen, the simplest first."""
    chains: dict[str, int] = {}
    for pick in choice.picks:
        own = [one for one in pick.seen if family_of(one.arm) == "chain"]
        if own:
            best = max(own, key=lambda one: one.output_tokens_per_second)
            chains[best.arm] = best.tokens
    return tuple(dict.fromkeys((AR, *sorted(chains, key=lambda arm: chains[arm]), choice.arm)))


def trials(found: Sequence[Series], lines: Iterable[ArmLine]) -> tuple[Trial, ...]:
    """What the rounds showed, by number of requests."""
    tokens = {line.name: line.tokens for line in lines}
    return tuple(
        Trial(concurrency=best.concurrency, doubt=best.doubt, seen=seen(best, tokens, found))
        for best in bests_of(found)
    )


def confirmed(choice: Choice, made: Sequence[Trial]) -> str:
    """The arm to serve: the choice if it is faster, by more than may be chance, than everything simpler."""
    arms = rivals(choice)
    speeds = {arm: [trial.speed(arm) for trial in made] for arm in arms}
    return simplest(speeds, [trial.doubt for trial in made])
