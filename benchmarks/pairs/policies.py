"""Other ways to choose a tree's nodes, tried on traces: what each would have accepted, without an engine.

A tree is grown from the block at the last committed token and cut where the text leaves it: the engine's own walk down a text
that the target wrote. What is fitted (calibration, discounts) is fitted on one half of the texts and tried on the other
(simulate.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.pairs.trace import RANKS, Trace

Floats = npt.NDArray[np.float64]
Node = tuple[int, ...]
"""Ranks from the root down; () is the root."""


@dataclass(frozen=True)
class Policy:
    """Scores of a block's candidates: `on_spine` [width, RANKS] below a spine node, `beside` below any other; a node's is
    its path's sum. `spine_first`: the drafter's best tokens at every depth come before anything else.
    """

    name: str
    scores: Callable[[Trace, int], tuple[Floats, Floats]]
    spine_first: bool = True


def grown(policy: Policy, trace: Trace, block: int, budget: int) -> list[tuple[Node, float]]:
    """The block's tree of at most `budget` nodes in the order in which it grows, each with its score. Every beginning of it is a
    tree, too.
    """
    on_spine, beside = policy.scores(trace, block)
    width = len(on_spine)
    heap: list[tuple[float, int, Node]] = []
    count = 0

    def offer(parent: Node, rank: int, base: float) -> None:
        nonlocal count
        depth = len(parent)
        if depth < width and rank < RANKS:
            table = beside if any(parent) else on_spine
            heapq.heappush(heap, (-(base + float(table[depth, rank])), count, (*parent, rank)))
            count += 1

    spine = min(budget, width) if policy.spine_first else 0
    bases = [0.0, *np.cumsum(on_spine[:spine, 0]).tolist()]
    nodes = [((0,) * depth, bases[depth]) for depth in range(1, spine + 1)]
    for depth in range(spine):
        offer((0,) * depth, 1, bases[depth])
    if spine < width:
        offer((0,) * spine, 0, bases[spine])
    while len(nodes) < budget and heap:
        negative, _, node = heapq.heappop(heap)
        nodes.append((node, -negative))
        parent, rank = node[:-1], node[-1]
        table = beside if any(parent) else on_spine
        offer(parent, rank + 1, -negative - float(table[len(parent), rank]))
        offer(node, 0, -negative)
    return nodes


def followed(nodes: Sequence[tuple[Node, float]], trace: Trace, block: int) -> int:
    """How many tokens of the text a tree accepts: only ranks matter, the tree follows them as long as it holds them."""
    ranks = trace.ranks[block]
    path = tuple(int(r) for r in ranks[: int((ranks >= 0).cumprod().sum())])
    held = {node for node, _ in nodes}
    return next((depth for depth in range(len(path)) if path[: depth + 1] not in held), len(path))


def accepted(policy: Policy, trace: Trace, block: int, budget: int) -> int:
    """Nodes of the block's tree of `budget` nodes that the text accepts."""
    return followed(grown(policy, trace, block, budget), trace, block)


def whole(trace: Trace, block: int) -> bool:
    """Whether the text has tokens for all of the block's slots: simulated decoding ends where it has not."""
    return block < len(trace.ranks) and bool(trace.ranks[block, -1] >= 0)


def walked(policy: Policy, trace: Trace, budget: int) -> tuple[int, int]:
    """(tokens, steps) of decoding one text with trees of `budget` nodes."""
    at = tokens = steps = 0
    while whole(trace, at):
        gain = accepted(policy, trace, at, budget) + 1
        at, tokens, steps = at + gain, tokens + gain, steps + 1
    return tokens, steps


def _plain(trace: Trace, block: int) -> tuple[Floats, Floats]:
    scores = trace.logprobs[block].astype(np.float64)
    return scores, scores


def plain() -> Policy:
    """ddtree_ext's: the drafter's log-probabilities, the spine first."""
    return Policy("logprobs", _plain)


def without_spine() -> Policy:
    """The paper's heap: the likeliest node next, the spine as far as it is that."""
    return Policy("logprobs, no spine first", _plain, spine_first=False)


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
