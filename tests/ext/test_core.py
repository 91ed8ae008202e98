"""The rule of growth, written out in core/tree.py, has the properties everything else leans on."""

from __future__ import annotations

from itertools import product, takewhile

import numpy as np
import pytest
from drafts import DEVICE, marginals, random_tree
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ext.core.buffers import DEAD, ROOT, TreeBuffers
from ddtree_ext.core.tree import Tree, grow

shapes = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 20))


@settings(max_examples=150, deadline=None)
@given(st.data(), shapes)
def test_every_prefix_of_a_grown_tree_is_a_tree(data: st.DataObject, shape: tuple[int, int, int]) -> None:
    width, ranks, budget = shape
    tree = grow(*data.draw(marginals(width, ranks)), budget)
    assert tree.num_nodes <= budget
    for n in range(tree.num_nodes + 1):
        assert tree.cut(n).num_nodes == n
        assert tree.cut(n).faults() == ()
    assert max(tree.depths) <= width
    assert len(set(zip(tree.parents, tree.ranks, strict=True))) == len(tree.parents)


@settings(max_examples=150, deadline=None)
@given(st.data(), shapes)
def test_the_spine_comes_first_and_the_rest_falls_in_score(data: st.DataObject, shape: tuple[int, int, int]) -> None:
    width, ranks, budget = shape
    logprobs, ids = data.draw(marginals(width, ranks))
    tree = grow(logprobs, ids, budget)
    usable = (ids >= 0) & (logprobs > -np.inf)
    spine = next((d for d in range(width) if not usable[d].any()), width)
    spine = min(spine, budget)
    assert tree.parents[1 : spine + 1] == tuple(range(spine))
    assert tree.tokens[1 : spine + 1] == tuple(int(ids[d][usable[d]][0]) for d in range(spine))
    rest = [float(s) for s in tree.scores[spine + 1 :]]
    assert rest == sorted(rest, reverse=True)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 30))
def test_the_nodes_are_the_best_prefixes_of_all(data: st.DataObject, width: int, ranks: int, budget: int) -> None:
    """All K^1 + ... + K^W prefixes listed and sorted by score: the tree is the spine and the best of the rest."""
    logprobs, ids = data.draw(marginals(width, ranks))
    tree = grow(logprobs, ids, budget)
    usable = (ids >= 0) & (logprobs > -np.inf)
    ranked = {}
    for depth in range(1, width + 1):
        for prefix in product(range(ranks), repeat=depth):
            if all(usable[d, r] for d, r in enumerate(prefix)):
                score = np.float32(0)
                for d, r in enumerate(prefix):
                    score = score + logprobs[d, r]
                ranked[prefix] = float(score)
    chosen = [tuple(tree.ranks[i] for i in tree.path(row)[1:]) for row in range(1, tree.num_nodes + 1)]
    assert len(chosen) == len(set(chosen)) == min(budget, len(ranked))
    assert all(ranked[prefix] == score for prefix, score in zip(chosen, map(float, tree.scores[1:]), strict=True))
    firsts = [int(np.flatnonzero(u)[0]) for u in takewhile(np.any, usable)]
    spine = {tuple(firsts[:d]) for d in range(1, min(len(firsts), budget) + 1)}
    assert spine <= set(chosen)
    free = sorted((s for p, s in ranked.items() if p not in spine), reverse=True)
    assert sorted((ranked[p] for p in chosen if p not in spine), reverse=True) == free[: len(chosen) - len(spine)]


def test_a_worked_example() -> None:
    logprobs = np.array([[-0.1, -2.0], [-0.5, -1.0], [-0.2, -3.0]], np.float32)
    ids = np.array([[7, 8], [5, 6], [3, 4]], np.int64)
    tree = grow(logprobs, ids, 6)
    # Spine 7 5 3; then 7 6 (-1.1) and its child 3 (-1.3), then 8 (-2.0).
    assert tree.tokens[1:] == (7, 5, 3, 6, 3, 8)
    assert tree.parents == (ROOT, 0, 1, 2, 1, 4, 0)
    assert tree.depths == (0, 1, 2, 3, 2, 3, 1)
    assert [tree.ancestor_word(i) for i in range(7)] == [0b1, 0b11, 0b111, 0b1111, 0b10011, 0b110011, 0b1000001]
    assert tree.walk([7, 6, 0, 0, 3, 9, 0]) == (1, 4, 5)
    assert tree.cut(3).walk([7, 6, 0, 0, 3, 9, 0]) == (1,)
    assert tree.walk([9, 0, 0, 0, 0, 0, 0]) == ()


def test_ties_go_to_the_smaller_depth_then_row_then_rank() -> None:
    flat = np.full((3, 3), -1, np.float32)
    tree = grow(flat, np.arange(9).reshape(3, 3), 20)
    nodes = zip(map(float, tree.scores), tree.depths, tree.parents, tree.ranks, strict=True)
    rest = list(nodes)[4:]
    assert rest == sorted(rest, key=lambda node: (-node[0], *node[1:]))


def test_row_63_takes_the_sign_bit() -> None:
    tree = random_tree(np.random.default_rng(1), 63)
    assert tree.ancestor_word(63) < 0
    assert tree.ancestor_word(63) % 2**64 == sum(1 << j for j in tree.path(63))


def test_faults_are_named() -> None:
    good = Tree.root().grown(0, 5, 0, np.float32(0))
    twice = good.grown(0, 5, 1, np.float32(0))
    assert twice.faults() == ("row 2 repeats token 5 below row 0",)
    assert good.grown(1, -1, 0, np.float32(0)).faults() == ("row 2 holds padding",)
    early = Tree((-1, 5), (ROOT, 1), (-1, 0), (0, 1), (np.float32(0),) * 2)
    assert early.faults() == ("row 1 has parent 1, which does not stand before it",)


def test_fresh_buffers_hold_no_tree() -> None:
    trees = TreeBuffers.allocate(3, 63, DEVICE)
    assert (trees.slots, trees.budget, trees.rows) == (3, 63, 64)
    assert trees.num_nodes.tolist() == [0, 0, 0]
    assert trees.parents[1].tolist() == [ROOT] + [DEAD] * 63
    assert trees.ancestors[2].tolist() == [1 << j for j in range(63)] + [-(2**63)]


@pytest.mark.parametrize(("slots", "budget"), [(1, 0), (1, 64), (0, 8)])
def test_impossible_buffers_are_refused(slots: int, budget: int) -> None:
    with pytest.raises(ValueError, match=r"budget|slots"):
        TreeBuffers.allocate(slots, budget, DEVICE)
