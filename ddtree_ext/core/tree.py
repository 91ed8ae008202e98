"""One request's draft tree in plain Python: the rule written out, slow and without a heap; the kernels' reference.

The rule (DDTree, arXiv 2604.12989, with the spine seeded first): a candidate is a pair of a selected row and a rank; it
stands one depth below its parent, and its score is the parent's plus the log-probability at that depth and rank, summed
in fp32 from the root. The spine comes first: at each depth the first usable rank below the previous spine node. Then,
repeatedly, the candidate of the highest score; of equals the smallest depth, then parent row, then rank.
A rank is usable when its token id is not padding (>= 0) and the candidate's score is above -inf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddtree_ext.core.buffers import ROOT

Scores = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tree:
    """A draft tree; entry 0 of each tuple is the root, whose token is the committed one and not kept here (-1).

    tokens, parents, ranks, depths, scores: one entry per row. Only trees grown from a draft know ranks and scores.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    ranks: tuple[int, ...]
    depths: tuple[int, ...]
    scores: tuple[np.float32, ...]

    @classmethod
    def root(cls) -> Tree:
        """The tree without nodes: one row."""
        return cls((-1,), (ROOT,), (-1,), (0,), (np.float32(0),))

    @property
    def num_nodes(self) -> int:
        """Rows below the root."""
        return len(self.tokens) - 1

    def grown(self, parent: int, token: int, rank: int, score: np.float32) -> Tree:
        """This tree with one more node, as its last row."""
        return Tree(
            (*self.tokens, token),
            (*self.parents, parent),
            (*self.ranks, rank),
            (*self.depths, self.depths[parent] + 1),
            (*self.scores, score),
        )

    def cut(self, nodes: int) -> Tree:
        """The tree of the first `nodes` nodes."""
        n = nodes + 1
        return Tree(self.tokens[:n], self.parents[:n], self.ranks[:n], self.depths[:n], self.scores[:n])

    def path(self, row: int) -> tuple[int, ...]:
        """Rows from the root to `row`, both included."""
        above: tuple[int, ...] = () if row == 0 else self.path(self.parents[row])
        return (*above, row)

    def ancestor_word(self, row: int) -> int:
        """The row's 64-bit ancestor word as a signed integer."""
        word = sum(1 << j for j in self.path(row))
        return word - (1 << 64) if word >> 63 else word

    def faults(self) -> tuple[str, ...]:
        """What keeps this from being a draft tree; empty when it is one. It holds then for every prefix too."""
        found = []
        if (self.parents[0], self.depths[0]) != (ROOT, 0):
            found.append("row 0 is not a root")
        seen: set[tuple[int, int]] = set()
        for row in range(1, len(self.tokens)):
            parent, token = self.parents[row], self.tokens[row]
            if not 0 <= parent < row:
                found.append(f"row {row} has parent {parent}, which does not stand before it")
                continue
            if self.depths[row] != self.depths[parent] + 1:
                found.append(f"row {row} has depth {self.depths[row]} below depth {self.depths[parent]}")
            if token < 0:
                found.append(f"row {row} holds padding")
            if (parent, token) in seen:
                found.append(f"row {row} repeats token {token} below row {parent}")
            seen.add((parent, token))
        return tuple(found)

    def walk(self, sampled: Sequence[int]) -> tuple[int, ...]:
        """The accepted rows after the root: from the root, on to the child whose token was sampled at the row stood on.

        sampled: the target's token at every row.
        """
        row = 0
        accepted: list[int] = []
        while (child := self._child(row, sampled[row])) is not None:
            row = child
            accepted.append(row)
        return tuple(accepted)

    def _child(self, row: int, token: int) -> int | None:
        rows = range(row + 1, len(self.tokens))
        return next((c for c in rows if self.parents[c] == row and self.tokens[c] == token), None)


def grow(logprobs: Scores, ids: Ids, budget: int) -> Tree:
    """The tree of at most `budget` nodes over the drafter's marginals.

    logprobs: [W, K] float32, descending along K; ids: [W, K] int64, distinct within a position unless padding.
    """
    tree = _spine(logprobs, ids, budget)
    taken = set(zip(tree.parents, tree.ranks, strict=True))
    while tree.num_nodes < budget:
        best = min(_candidates(tree, logprobs, ids, taken), default=None)
        if best is None:
            return tree
        negative, _, parent, rank = best
        taken.add((parent, rank))
        tree = tree.grown(parent, int(ids[tree.depths[parent], rank]), rank, np.float32(-negative))
    return tree


def _spine(logprobs: Scores, ids: Ids, budget: int) -> Tree:
    tree = Tree.root()
    for depth in range(min(budget, len(logprobs))):
        scores = tree.scores[depth] + logprobs[depth]
        usable = [r for r, score in enumerate(scores) if _usable(score, ids[depth, r])]
        if not usable:
            return tree
        rank = usable[0]
        tree = tree.grown(depth, int(ids[depth, rank]), rank, scores[rank])
    return tree


def _candidates(
    tree: Tree, logprobs: Scores, ids: Ids, taken: set[tuple[int, int]]
) -> list[tuple[np.float32, int, int, int]]:
    """(-score, depth, parent row, rank) of every candidate: the smallest is the next node."""
    width, ranks = logprobs.shape
    return [
        (-(tree.scores[parent] + logprobs[depth, rank]), depth + 1, parent, rank)
        for parent, depth in enumerate(tree.depths)
        if depth < width
        for rank in range(ranks)
        if (parent, rank) not in taken and _usable(tree.scores[parent] + logprobs[depth, rank], ids[depth, rank])
    ]


def _usable(score: np.float32, token: np.int64) -> bool:
    return bool(token >= 0 and score > -np.inf)
