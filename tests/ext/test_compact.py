"""compact_kv leaves the accepted rows behind the prefix in every layer's cache, and all other tokens as they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drafts import POISON, int32, starts
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ext.kernels.block_tables import BlockTables
from ddtree_ext.kernels.compact import CompactTable, GroupedCache, compact_kv

ROWS = 12
LAYOUTS = ("interleaved", "stacked")


def caches(
    layout: str, layers: int, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> list[tuple[torch.Tensor, ...]]:
    """(K, V) of each layer as [blocks, block_size, Hkv, D] views, every element different from its neighbours."""
    blocks, block_size, heads, size = shape
    found = []
    for _ in range(layers):
        if layout == "interleaved":  # K and V of a token in one row, heads outside tokens
            memory = torch.randn(blocks, heads, block_size, 2 * size).to(dtype)
            found.append(memory.transpose(1, 2).split(size, dim=-1))
        else:  # K and V of a block side by side, tokens outside heads
            memory = torch.randn(blocks, 2, block_size, heads, size).to(dtype)
            found.append(memory.unbind(1))
    return found


def accepted_path(rng: np.random.Generator, rows: int) -> list[int]:
    count = int(rng.integers(0, rows))
    return [0, *sorted(rng.choice(np.arange(1, rows), count, replace=False).tolist())]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.sampled_from([16, 5, 48]),
    st.sampled_from([32, 64, 80]),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
def test_the_accepted_path_follows_the_prefix(
    layout: str, dtype: torch.dtype, block_size: int, size: int, layers: int, seed: int
) -> None:
    """Requests of unequal bases and paths; some are no trees, some accept nothing; every layer has blocks of its own group,
    whose tables are of unequal width, and shuffled."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    requests = int(rng.integers(1, 4))
    bases, lengths = rng.integers(0, 100, requests).tolist(), rng.integers(1, ROWS + 1, requests).tolist()
    is_tree = (rng.random(requests) < 0.8).tolist()
    seq_lens = [b + n for b, n in zip(bases, lengths, strict=True)]
    width = -(-max(seq_lens) // block_size)
    count = requests * width
    tables = []
    for group in range(layers + 1):
        table = np.full((requests, width + group), POISON)
        table[:, :width] = rng.permutation(count).reshape(requests, width)
        tables.append(torch.tensor(table, dtype=torch.int32))
    groups = rng.permutation(layers + 1)[:layers].tolist()
    pairs = caches(layout, layers, (count, block_size, 2, size), dtype)
    paths = [accepted_path(rng, n) for n in lengths]
    path = int32([row for p in paths for row in p + [-1] * (ROWS - len(p))]).view(requests, ROWS)

    planes = [plane for pair in pairs for plane in pair]
    expected = [plane.clone() for plane in planes]
    for number, (new, old) in enumerate(zip(expected, planes, strict=True)):
        blocks = tables[groups[number // 2]]
        for r, rows in enumerate(paths):
            for i, row in enumerate(rows if is_tree[r] else []):
                source, target = bases[r] + row, bases[r] + i
                at = blocks[r, source // block_size], source % block_size
                new[blocks[r, target // block_size], target % block_size] = old[at]
    consumed = int32([len(p) for p in paths])
    table = CompactTable.of([GroupedCache(group, *pair) for group, pair in zip(groups, pairs, strict=True)])
    block_tables = BlockTables.of(tables)
    compact_kv(table, block_tables, int32(seq_lens), starts(lengths), int32(is_tree), path, consumed)
    for plane, truth in zip(planes, expected, strict=True):
        assert torch.equal(plane.contiguous().view(torch.int16), truth.contiguous().view(torch.int16))


@pytest.mark.parametrize("consumed", [0, 1])
def test_a_step_that_accepts_no_node_moves_nothing(consumed: int) -> None:
    pairs = caches("stacked", 1, (2, 16, 1, 32), torch.float32)
    before = [plane.clone() for plane in pairs[0]]
    path = torch.full((1, 4), POISON, dtype=torch.int32)
    table, blocks = CompactTable.of([GroupedCache(0, *pairs[0])]), BlockTables.of([int32([0, 1]).view(1, 2)])
    compact_kv(table, blocks, int32([20]), starts([4]), int32([1]), path, int32([consumed]))
    assert all(torch.equal(a, b) for a, b in zip(pairs[0], before, strict=True))


def test_caches_that_do_not_belong_together_are_refused() -> None:
    (one,) = caches("stacked", 1, (2, 16, 1, 32), torch.float32)
    (other,) = caches("stacked", 1, (2, 16, 2, 32), torch.float32)
    with pytest.raises(ValueError, match="one shape and type"):
        CompactTable.of([GroupedCache(0, *one), GroupedCache(1, *other)])
    with pytest.raises(ValueError, match="contiguous rows"):
        CompactTable.of([GroupedCache(0, one[0][..., ::2], one[1][..., ::2])])
