"""Tokens a step by node budget: an assumption, spelled out, until the real pair says it. No weights, no GPU.

At a position of a draft the drafter's best token is nearly sure or it is not, and the drafter knows which of the two.
Trees grow over it by the rule of ddtree_ext.core.tree, and the chance that a walk reaches a node is a product along its path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.roofline import DRAFTER_WIDTH, RANKS
from ddtree_ext.core.tree import Tree, grow

DRAFTS = 32
"""Drafts that a mean is taken over, drawn with one seed."""
LARGEST = 63


@dataclass(frozen=True)
class Drafter:
    """length: tokens a step of the whole chain, the bonus token counted; it decides the chance at the unsure positions.

    often: share of the positions that are sure.
    second: of the misses, the share that the second rank catches; each later one half of the one before.
    beside: chance that the best token is right below a node that was not the best itself.
    Both as others saw with block-16 drafters: a second rank right in 37 % of first misses, 22 % right after a sibling.
    """

    length: float = 5.5
    sure: float = 0.97
    often: float = 0.7
    second: float = 0.37
    beside: float = 0.22


def scores(best: Sequence[float]) -> npt.NDArray[np.float32]:
    """[W, RANKS] log-probabilities that the drafter gives: `best` for the first rank, halves of what is left for the others."""
    rows = [[first, *((1 - first) * 0.5**rank for rank in range(1, RANKS))] for first in best]
    return np.log(np.array(rows, dtype=np.float32))


def accepted(tree: Tree, best: Sequence[float], drafter: Drafter) -> tuple[float, ...]:
    """Nodes accepted on the average with a budget of 0, 1, 2 ... the tree's nodes: a smaller tree is its first nodes."""
    reached, spine, total, sums = [1.0], [True], 0.0, [0.0]
    for row in range(1, len(tree.parents)):
        parent, rank = tree.parents[row], tree.ranks[row]
        first = best[tree.depths[parent]] if spine[parent] else drafter.beside
        right = first if rank == 0 else (1 - first) * drafter.second * 0.5 ** (rank - 1)
        reached.append(reached[parent] * right)
        spine.append(spine[parent] and rank == 0)
        total += reached[row]
        sums.append(total)
    return tuple(sums)


def drafts(drafter: Drafter) -> npt.NDArray[np.float64]:
    """[DRAFTS, W] chances of the best tokens, so that the chain's mean comes to the drafter's length.

    Raises ValueError for a length that no chance at the unsure positions gives.
    """
    sure = np.random.default_rng(0).random((DRAFTS, DRAFTER_WIDTH)) < drafter.often

    def chances(unsure: float) -> npt.NDArray[np.float64]:
        return np.where(sure, drafter.sure, unsure)

    def length(unsure: float) -> float:
        return 1 + float(np.cumprod(chances(unsure), axis=1).sum(axis=1).mean())

    low, high = 0.01, drafter.sure
    if not length(low) < drafter.length < length(high):
        raise ValueError(f"a chain of {DRAFTER_WIDTH} has {length(low):.1f} to {length(high):.1f} tokens a step here")
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if length(middle) > drafter.length else (middle, high)
    return chances(low)


@cache
def tokens(drafter: Drafter) -> tuple[float, ...]:
    """Tokens a step, the bonus token counted, with 0, 1, ... LARGEST nodes; up to the drafter's width these are the chain's."""
    sums = np.zeros(LARGEST + 1)
    for best in drafts(drafter).tolist():
        logprobs = scores(best)
        ids = np.arange(logprobs.size, dtype=np.int64).reshape(logprobs.shape)
        sums += accepted(grow(logprobs, ids, LARGEST), best, drafter)
    return tuple(1 + float(total) / DRAFTS for total in sums)
