"""Other ways to choose a tree's nodes, tried on traces: what each would have accepted, without an engine.

The walk down a text that the target wrote is the engine's own walk: at every step a tree is grown from the block at the
last committed token and cut where the text leaves it. So at T = 0 the simulated acceptance length is what an engine would
show up to rounding, and at T > 0 it is an unbiased sample, since the text was drawn without regard to any tree. What is
fitted (calibration, discounts) is fitted on one half of the texts and tried on the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.pairs.acceptance import acceptance
from benchmarks.pairs.trace import RANKS, Trace

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Policy:
    """Scores of a block's candidates: `on_spine` [width, RANKS] below a spine node, `beside` below any other; a node's is
    its path's sum.
    """

    name: str
    scores: Callable[[Trace, int], tuple[Floats, Floats]]


def accepted(policy: Policy, trace: Trace, block: int, budget: int) -> int:
    """Nodes of the block's tree that the text accepts: the spine first, then the best score, of `budget` nodes in all.

    Only ranks matter: the tree follows the text's ranks as long as it holds them.
    """
    on_spine, beside = policy.scores(trace, block)
    ranks = trace.ranks[block]
    width = len(ranks)
    path = tuple(int(r) for r in ranks[: int((ranks >= 0).cumprod().sum())])
    spine = min(budget, width)
    held = {(0,) * depth for depth in range(spine + 1)}
    heap: list[tuple[float, int, tuple[int, ...]]] = []
    count = 0

    def offer(parent: tuple[int, ...], rank: int, base: float) -> None:
        nonlocal count
        depth = len(parent)
        if depth < width and rank < RANKS:
            table = beside if any(parent) else on_spine
            heapq.heappush(heap, (-(base + float(table[depth, rank])), count, (*parent, rank)))
            count += 1

    base = 0.0
    bases = {(): 0.0}
    for depth in range(spine):
        base += float(on_spine[depth, 0])
        bases[(0,) * (depth + 1)] = base
    for node, value in bases.items():
        offer(node, 1, value)
    nodes = spine
    while nodes < budget and heap:
        negative, _, node = heapq.heappop(heap)
        held.add(node)
        nodes += 1
        parent, rank = node[:-1], node[-1]
        table = beside if any(parent) else on_spine
        offer(parent, rank + 1, -negative - float(table[len(parent), rank]))
        offer(node, 0, -negative)
    return next((depth for depth in range(len(path)) if path[: depth + 1] not in held), len(path))


def walked(policy: Policy, trace: Trace, budget: int) -> tuple[int, int]:
    """(tokens, steps) of decoding one text with trees of `budget` nodes, while whole blocks fit."""
    at = tokens = steps = 0
    while at < len(trace.ranks) and trace.ranks[at, -1] >= 0:
        gain = accepted(policy, trace, at, budget) + 1
        at, tokens, steps = at + gain, tokens + gain, steps + 1
    return tokens, steps


def _plain(trace: Trace, block: int) -> tuple[Floats, Floats]:
    scores = trace.logprobs[block].astype(np.float64)
    return scores, scores


def plain() -> Policy:
    """DDTree's: the drafter's log-probabilities."""
    return Policy("logprobs", _plain)


def fitted(found: Sequence[Trace]) -> list[Policy]:
    """Policies with constants fitted on `found`: temperature by depth, rank table by depth, a discount beside the spine, and
    both.
    """
    ranks, logprobs = np.concatenate([t.ranks for t in found]), np.concatenate([t.logprobs for t in found])
    width = ranks.shape[1]
    temperature, table, discount = np.ones(width), np.zeros((width, RANKS)), np.zeros(width)
    on_spine, sibling = np.ones(len(ranks), dtype=bool), np.zeros(len(ranks), dtype=bool)
    for depth in range(width):
        here = on_spine & (ranks[:, depth] >= 0)
        aside = sibling & (ranks[:, depth] >= 0)
        temperature[depth] = _best_temperature(logprobs[here, depth], ranks[here, depth])
        hits = np.bincount(ranks[here, depth], minlength=RANKS + 1)[:RANKS]
        table[depth] = np.log((hits + 0.5) / (here.sum() + 0.5 * RANKS))
        if aside.any():
            got, said = (ranks[aside, depth] == 0).sum() + 1, np.exp(logprobs[aside, depth, 0]).sum() + 1
            discount[depth] = np.log(got / said)
        sibling = here & (ranks[:, depth] >= 1) & (ranks[:, depth] < RANKS)
        on_spine = here & (ranks[:, depth] == 0)

    def calibrated(trace: Trace, block: int) -> tuple[Floats, Floats]:
        scores = trace.logprobs[block] / temperature[:, None]
        scores = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        return scores, scores

    def discounted(
        base: Callable[[Trace, int], tuple[Floats, Floats]],
    ) -> Callable[[Trace, int], tuple[Floats, Floats]]:
        def scores(trace: Trace, block: int) -> tuple[Floats, Floats]:
            on, _ = base(trace, block)
            return on, on + discount[:, None]

        return scores

    return [
        Policy("temperature by depth", calibrated),
        Policy("rank table by depth", lambda trace, block: (table, table)),
        Policy("sibling discount", discounted(_plain)),
        Policy("temperature and discount", discounted(calibrated)),
    ]


def _best_temperature(logprobs: npt.NDArray[np.float32], ranks: npt.NDArray[np.int64]) -> float:
    """Of the top ranks' distribution, where the token is among them: the likeliest of a grid."""
    inside = ranks < RANKS
    if inside.sum() < 20:
        return 1.0
    logprobs, ranks = logprobs[inside].astype(np.float64), ranks[inside]
    best = (np.inf, 1.0)
    for temperature in np.arange(0.5, 2.55, 0.1):
        scaled = logprobs / temperature
        scaled = scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))
        best = min(best, (-float(scaled[np.arange(len(ranks)), ranks].mean()), float(temperature)))
    return best[1]


def tried(found: Sequence[Trace], budgets: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Policy -> budget -> acceptance length with its interval, on the second half of the texts; fitted on the first."""
    half = len(found) // 2
    learn, test = found[:half], found[half:]
    result: dict[str, Any] = {}
    spine = replace(plain(), name="chain")  # no budget beyond the drafter's width is a chain, whatever the scores
    for policy in (spine, plain(), *fitted(learn)):
        for budget in (found[0].ranks.shape[1],) if policy is spine else budgets:
            counted = np.array([walked(policy, t, budget) for t in test], dtype=np.float64)
            result.setdefault(policy.name, {})[str(budget)] = acceptance(counted).rounded()
    return result
