"""expand_rows spreads unequal trees, chunks of prompts and padding of one batch over the flat rows."""

from __future__ import annotations

import numpy as np
import torch
from drafts import DEVICE, POISON, int32, int64, random_tree, starts, stored
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ext.core.buffers import DEAD, TreeRows
from ddtree_ext.core.tree import Tree
from ddtree_ext.kernels.rows import expand_rows

BUDGET = 12


def poisoned_rows(requests: int, tokens: int) -> TreeRows:
    rows = TreeRows.allocate(requests, tokens, DEVICE)
    for tensor in (rows.positions, rows.parents, rows.ancestors, rows.tree_len):
        tensor.fill_(POISON)
    return rows


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_rows_of_a_mixed_batch(data: st.DataObject, seed: int) -> None:
    rng = np.random.default_rng(seed)
    requests = data.draw(st.integers(1, 5))
    trees = [random_tree(rng, int(rng.integers(0, BUDGET + 1)), depth=6) for _ in range(requests + 1)]
    slots = rng.permutation(requests + 1)[:requests].tolist()
    is_tree = [data.draw(st.booleans()) for _ in range(requests)]
    lengths = [data.draw(st.integers(0, BUDGET + 1) if t else st.integers(0, 200)) for t in is_tree]
    bases = [data.draw(st.integers(0, 500)) for _ in range(requests)]
    if data.draw(st.booleans()):
        slots[0] = -1
    total = sum(lengths)
    rows = poisoned_rows(requests + 2, total + 3)
    seq_lens = [b + n for b, n in zip(bases, lengths, strict=True)]
    flags, path = int32([*is_tree, POISON, POISON]), int32([[POISON] * (BUDGET + 1)] * (requests + 2))
    all_trees = all(is_tree) and data.draw(st.booleans())
    if all_trees:
        flags.fill_(POISON)
    stored_trees = stored(trees, BUDGET)
    expand_rows(int64(slots), starts(lengths), int32(seq_lens), flags, path, stored_trees, rows, all_trees)
    assert flags.tolist() == [*map(int, is_tree), 0, 0]
    assert path.tolist() == [[0, *([-1] * BUDGET)]] * (requests + 2)

    at = 0
    for r in range(requests):
        tree = trees[slots[r]]
        live = min(tree.num_nodes + 1, lengths[r]) if is_tree[r] and slots[r] >= 0 else 0
        assert rows.tree_len[r] == live
        for i in range(lengths[r]):
            if live == 0:
                expected = (bases[r] + i, i - 1, 0)
            elif i < live:
                expected = (bases[r] + tree.depths[i], tree.parents[i], tree.ancestor_word(i))
            else:
                expected = (bases[r], DEAD, 1 << i)
            assert (rows.positions[at + i], rows.parents[at + i], rows.ancestors[at + i]) == expected
        at += lengths[r]
    for tensor in (rows.positions, rows.parents, rows.ancestors):
        assert (tensor[total:] == POISON).all()
    assert rows.tree_len[requests:].tolist() == [0, 0]


def test_the_largest_tree_and_a_long_prompt_chunk() -> None:
    tree = random_tree(np.random.default_rng(3), 63)
    rows = poisoned_rows(2, 64 + 700)
    path = torch.zeros(2, 64, dtype=torch.int32, device=DEVICE)
    expand_rows(int64([0, 0]), starts([64, 700]), int32([1064, 700]), int32([1, 0]), path, stored([tree], 63), rows)
    assert rows.tree_len.tolist() == [64, 0]
    assert rows.ancestors[:64].tolist() == [tree.ancestor_word(i) for i in range(64)]
    assert rows.ancestors[63] < 0
    assert torch.equal(rows.positions[64:], torch.arange(700))
    assert torch.equal(rows.parents[64:], torch.arange(700, dtype=torch.int32) - 1)


def test_a_request_whose_tree_is_empty_has_its_root() -> None:
    rows = poisoned_rows(1, 1)
    path = torch.zeros(1, 5, dtype=torch.int32, device=DEVICE)
    expand_rows(int64([0]), starts([1]), int32([31]), int32([1]), path, stored([Tree.root()], 4), rows)
    assert (rows.tree_len.tolist(), rows.positions.tolist(), rows.ancestors.tolist()) == ([1], [30], [1])
