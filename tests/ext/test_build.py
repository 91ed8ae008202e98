"""build_trees grows, on tensors, exactly the tree that the rule in core/tree.py states."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from drafts import DEVICE, POISON, int32, int64, marginals, poisoned, stored
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ext.core.buffers import TreeBuffers
from ddtree_ext.core.tree import Ids, Scores, grow
from ddtree_ext.kernels.build import build_trees


def build(drafts: list[tuple[Scores, Ids]], budgets: list[int], slots: list[int], trees: TreeBuffers) -> None:
    logprobs = torch.tensor(np.stack([d[0] for d in drafts]))
    ids = torch.tensor(np.stack([d[1] for d in drafts]))
    build_trees(logprobs, ids, int32(budgets), int64(slots), trees)


def assert_same(actual: TreeBuffers, expected: TreeBuffers) -> None:
    for field in fields(TreeBuffers):
        assert torch.equal(getattr(actual, field.name), getattr(expected, field.name)), field.name


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 8), st.integers(1, 6), st.integers(1, 24))
def test_unequal_trees_of_one_batch_are_the_rule_s(data: st.DataObject, width: int, ranks: int, budget: int) -> None:
    """Budgets differ, slots are permuted, one request is left out; slots that no request names keep their poison."""
    requests = data.draw(st.integers(1, 4))
    drafts = [data.draw(marginals(width, ranks)) for _ in range(requests)]
    budgets = [data.draw(st.integers(0, budget + 2)) for _ in range(requests)]
    slots = data.draw(st.permutations(range(requests + 2)))[:requests]
    slots[data.draw(st.integers(0, requests - 1))] = -1
    trees = poisoned(requests + 2, budget)
    build(drafts, budgets, slots, trees)
    grown = {s: grow(*d, min(n, budget)) for s, d, n in zip(slots, drafts, budgets, strict=True) if s >= 0}
    assert_same(trees, stored([grown.get(s) for s in range(requests + 2)], budget))


def tied(rng: np.random.Generator, width: int, ranks: int) -> tuple[Scores, Ids]:
    """A draft whose log-probabilities are multiples of a half: sums tie in most trees, across depths as well."""
    logits = rng.normal(scale=rng.choice([0.1, 1.0, 4.0]), size=(width, 50))
    logprobs = np.ceil(-2 * (logits - np.log(np.exp(logits).sum(1, keepdims=True)))).astype(np.float32)
    order = np.argsort(logprobs, axis=1, kind="stable")[:, :ranks]
    return np.float32(-0.5) * np.take_along_axis(logprobs, order, 1), order.astype(np.int64)


def test_of_equal_sums_the_rule_s_is_taken() -> None:
    rng = np.random.default_rng(0)
    for _ in range(4):
        width, ranks, budget = int(rng.integers(2, 9)), int(rng.integers(2, 7)), int(rng.integers(8, 25))
        drafts = [tied(rng, width, ranks) for _ in range(16)]
        trees = poisoned(16, budget)
        build(drafts, [budget] * 16, list(range(16)), trees)
        assert_same(trees, stored([grow(*draft, budget) for draft in drafts], budget))


@pytest.mark.parametrize(("width", "ranks", "budget"), [(15, 8, 63), (15, 8, 31), (15, 1, 63), (15, 8, 7), (1, 8, 63)])
def test_sizes_of_real_drafters(width: int, ranks: int, budget: int) -> None:
    """Also K = 1 (a spine only), a budget below the width (a shorter chain), and fewer candidates than budget."""
    rng = np.random.default_rng(width * budget)
    logits = rng.normal(scale=3, size=(2, width, 100))
    logprobs = (logits - np.log(np.exp(logits).sum(2, keepdims=True))).astype(np.float32)
    logprobs = -np.sort(-logprobs, axis=2)[..., :ranks]
    ids = np.stack([np.stack([rng.permutation(100)[:ranks] for _ in range(width)]) for _ in range(2)])
    trees = poisoned(2, budget)
    build([(logprobs[0], ids[0]), (logprobs[1], ids[1])], [budget, budget], [1, 0], trees)
    expected = [grow(logprobs[1], ids[1], budget), grow(logprobs[0], ids[0], budget)]
    assert_same(trees, stored(expected, budget))
    assert trees.num_nodes.tolist() == [min(budget, width if ranks == 1 else ranks if width == 1 else budget)] * 2


def test_budget_zero_clears_the_slot() -> None:
    draft = (np.array([[-0.5]], np.float32), np.array([[3]], np.int64))
    trees = poisoned(1, 4)
    build([draft], [0], [0], trees)
    assert_same(trees, TreeBuffers.allocate(1, 4, DEVICE))


def test_a_skipped_request_writes_nothing() -> None:
    draft = (np.array([[-0.5]], np.float32), np.array([[3]], np.int64))
    trees = poisoned(1, 4)
    build([draft], [4], [-1], trees)
    assert (trees.tokens == POISON).all()
    assert (trees.num_nodes == POISON).all()


def test_the_spine_steps_over_padding_and_ends_where_nothing_is_usable() -> None:
    logprobs = np.array([[-0.1, -1.0], [-0.1, -0.2], [-0.1, -0.2]], np.float32)
    ids = np.array([[-1, 9], [4, 5], [-1, -1]], np.int64)
    trees = poisoned(1, 8)
    build([(logprobs, ids)], [8], [0], trees)
    assert trees.num_nodes.tolist() == [3]
    assert trees.tokens[0, :3].tolist() == [9, 4, 5]
    assert trees.parents[0, :4].tolist() == [-1, 0, 1, 1]


def test_wrong_types_and_shapes_are_refused() -> None:
    trees = TreeBuffers.allocate(1, 4, DEVICE)
    one = torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match="float32"):
        build_trees(one.double(), one.long(), int32([1]), int64([0]), trees)
    with pytest.raises(ValueError, match="width"):
        build_trees(one, one.long()[0], int32([1]), int64([0]), trees)
    with pytest.raises(ValueError, match="contiguous"):
        build_trees(one.transpose(1, 2), one.long().transpose(1, 2), int32([1]), int64([0]), trees)
