"""Random drafts and trees for the tests, and the way from plain trees to the kernels' buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch
from hypothesis import strategies as st

from ddtree_ext.core.buffers import TreeBuffers
from ddtree_ext.core.tree import Ids, Scores, Tree

DEVICE = torch.get_default_device()
"""Where the tests run; see conftest.py."""

POISON = -77
"""What integer outputs hold before a kernel runs."""


@st.composite
def marginals(draw: st.DrawFn, width: int, ranks: int, *, vocab: int = 50) -> tuple[Scores, Ids]:
    """One request's draft: descending log-probabilities [W, K] and their ids. Some have ties, -inf, padding."""
    seed = draw(st.integers(0, 2**32 - 1))
    ties = draw(st.booleans())
    holes = draw(st.sampled_from([0.0, 0.0, 0.2, 0.6]))
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=rng.choice([0.1, 1.0, 4.0]), size=(width, vocab))
    logprobs = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)
    if ties:
        logprobs = np.float32(-0.5) * np.ceil(-2 * logprobs)  # exact in fp32: sums tie as well
    order = np.argsort(-logprobs, axis=1, kind="stable")[:, :ranks]
    logprobs, ids = np.take_along_axis(logprobs, order, 1), order.astype(np.int64)
    ids[rng.random(ids.shape) < holes] = -1
    logprobs[np.sort(rng.random(ids.shape) < holes / 2, axis=1)] = -np.inf
    return logprobs, ids


def random_tree(rng: np.random.Generator, nodes: int, *, depth: int = 15, vocab: int = 1000) -> Tree:
    """Any valid tree: every node hangs below a random earlier row, children of a row hold different tokens."""
    tree = Tree.root()
    while tree.num_nodes < nodes:
        parent = int(rng.integers(len(tree.tokens)))
        if tree.depths[parent] >= depth:
            continue
        siblings = {t for t, p in zip(tree.tokens, tree.parents, strict=True) if p == parent}
        token = int(rng.integers(vocab))
        if token not in siblings:
            tree = tree.grown(parent, token, len(siblings), np.float32(0))
    return tree


def store(trees: TreeBuffers, slot: int, tree: Tree) -> None:
    """Put a plain tree into the buffers, as build_trees would."""
    n = tree.num_nodes
    fresh = TreeBuffers.allocate(1, trees.budget, DEVICE)
    fresh.tokens[0, :n] = torch.tensor(tree.tokens[1:], dtype=torch.int64)
    fresh.parents[0, : n + 1] = torch.tensor(tree.parents, dtype=torch.int32)
    fresh.depths[0, : n + 1] = torch.tensor(tree.depths, dtype=torch.int32)
    fresh.ancestors[0, : n + 1] = torch.tensor([tree.ancestor_word(i) for i in range(n + 1)], dtype=torch.int64)
    fresh.num_nodes[0] = n
    for field in fields(TreeBuffers):
        getattr(trees, field.name)[slot] = getattr(fresh, field.name)[0]


def stored(trees: Sequence[Tree | None], budget: int) -> TreeBuffers:
    """Buffers with these trees by slot; None leaves the slot poisoned."""
    buffers = poisoned(len(trees), budget)
    for slot, tree in enumerate(trees):
        if tree is not None:
            store(buffers, slot, tree)
    return buffers


def poisoned(slots: int, budget: int) -> TreeBuffers:
    buffers = TreeBuffers.allocate(slots, budget, DEVICE)
    for field in fields(TreeBuffers):
        getattr(buffers, field.name).fill_(POISON)
    return buffers


def int32(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def int64(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def starts(lengths: Sequence[int]) -> torch.Tensor:
    """[R + 1] int32: where each of the lengths begins, and the end."""
    return int32([0, *np.cumsum(lengths, dtype=int).tolist()])
