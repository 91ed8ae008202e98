"""walk_trees accepts, on tensors, exactly what Tree.walk accepts."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from drafts import POISON, int32, int64, random_tree, starts, stored
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ext.core.tree import Tree
from ddtree_ext.kernels.walk import walk_trees

BUDGET = 20


def row_token(tree: Tree | None, row: int) -> int:
    """A row's own token, as the batch's input ids hold it; rows beyond the tree hold token 0."""
    return tree.tokens[row] if tree is not None and 0 < row <= tree.num_nodes else 0


def walk(
    sampled: list[int],
    lengths: list[int],
    slots: list[int],
    is_tree: list[int],
    trees: list[Tree | None],
    budget: int = BUDGET,
    forbidden: frozenset[int] = frozenset(),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    requests = len(slots)
    tokens = torch.full((requests, budget + 1), POISON, dtype=torch.int64)
    path = torch.full((requests, budget + 1), POISON, dtype=torch.int32)
    count = torch.full((requests,), POISON, dtype=torch.int32)
    own = [row_token(trees[slot], row) for slot, length in zip(slots, lengths, strict=True) for row in range(length)]
    own = [-1 if at in forbidden else token for at, token in enumerate(own)]
    buffers = stored(trees, budget)
    walk_trees(int64(sampled), int64(own), starts(lengths), int64(slots), int32(is_tree), buffers, tokens, count, path)
    return tokens, count, path


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_walks_of_a_mixed_batch(data: st.DataObject, seed: int) -> None:
    """Unequal trees, cut trees, requests without a tree; the target often agrees with the tree."""
    rng = np.random.default_rng(seed)
    requests = data.draw(st.integers(1, 5))
    trees: list[Tree | None] = [
        random_tree(rng, int(rng.integers(0, BUDGET + 1)), depth=6, vocab=30) for _ in range(requests)
    ]
    slots = rng.permutation(requests).tolist()
    is_tree = [int(data.draw(st.booleans())) for _ in range(requests)]
    lengths = [data.draw(st.integers(1, BUDGET + 1)) for _ in range(requests)]
    sampled, expected = [], []
    for r in range(requests):
        tree = trees[slots[r]]
        assert tree is not None
        target = rng.integers(30, size=BUDGET + 1).tolist()
        for row in range(1, tree.num_nodes + 1):
            if rng.random() < 0.6:
                target[tree.parents[row]] = tree.tokens[row]
        accepted = tree.cut(min(lengths[r] - 1, tree.num_nodes)).walk(target) if is_tree[r] else ()
        expected.append(([target[row] for row in (0, *accepted)], (0, *accepted)))
        sampled += target[: lengths[r]]
    tokens, count, path = walk(sampled, lengths, slots, is_tree, trees)
    for r, (emitted, rows) in enumerate(expected):
        rest = BUDGET + 1 - len(rows)
        assert count[r] == len(rows)
        assert tokens[r].tolist() == emitted + [-1] * rest
        assert path[r].tolist() == [*rows, *[-1] * rest]


def test_a_whole_spine_of_the_largest_tree_is_accepted() -> None:
    tree = Tree.root()
    for depth in range(63):
        tree = tree.grown(depth, depth + 100, 0, np.float32(0))
    tokens, count, path = walk([*range(100, 163), 5], [64], [0], [1], [tree], 63)
    assert count.tolist() == [64]
    assert tokens[0].tolist() == [*range(100, 163), 5]
    assert path[0].tolist() == list(range(64))


def test_a_cut_tree_does_not_reach_into_the_next_requests_rows() -> None:
    """Its only node was cut off; where it would stand is the next request's first row, which holds the node's token."""
    tree = Tree.root().grown(0, 0, 0, np.float32(0))
    tokens, count, path = walk([0, 5], [1, 1], [0, 1], [1, 0], [tree, None])
    assert count.tolist() == [1, 1]
    assert tokens[0, :2].tolist() == [0, -1]
    assert path[0, :2].tolist() == [0, -1]


def test_a_request_without_a_slot_has_no_tree() -> None:
    """Though another's lies before the first slot, and its flag says otherwise."""
    tree = Tree.root().grown(0, 100, 0, np.float32(0))
    both = stored([tree, None], BUDGET)
    behind = replace(both, **{field.name: getattr(both, field.name)[1:] for field in fields(both)})
    tokens, count, path = (torch.full((1, BUDGET + 1), POISON) for _ in range(3))
    walk_trees(
        int64([100, 5]), int64([0, 100]), starts([2]), int64([-1]), int32([1]), behind, tokens, count[0, :1], path.int()
    )
    assert count[0, 0] == 1
    assert tokens[0, :2].tolist() == [100, -1]


def test_a_forbidden_node_ends_the_walk_though_the_target_agrees() -> None:
    tree = Tree.root()
    for depth in range(3):
        tree = tree.grown(depth, depth + 100, 0, np.float32(0))
    tokens, count, path = walk([100, 101, 102, 5], [4], [0], [1], [tree], forbidden=frozenset({2}))
    assert count.tolist() == [2]
    assert tokens[0, :2].tolist() == [100, 101]
    assert path[0, :3].tolist() == [0, 1, -1]


def test_a_request_without_rows_samples_nothing() -> None:
    tokens, count, path = walk([4], [0, 1], [0, 1], [0, 0], [None, None])
    assert count.tolist() == [0, 1]
    assert tokens[:, 0].tolist() == [-1, 4]
    assert path[:, 0].tolist() == [0, 0]


def test_outputs_of_another_width_are_refused() -> None:
    trees = stored([random_tree(np.random.default_rng(0), 2)], 4)
    wide = torch.zeros(1, 9, dtype=torch.int64)
    with pytest.raises(ValueError, match="out_tokens is"):
        walk_trees(int64([1]), int64([0]), starts([1]), int64([0]), int32([1]), trees, wide, int32([0]), wide.int())
