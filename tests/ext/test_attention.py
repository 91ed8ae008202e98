"""tree_attention equals plain softmax attention in float64 under each row's own mask, in unequal batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from drafts import DEVICE, int32, random_tree, starts, stored
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ext.core.buffers import TreeRows
from ddtree_ext.core.tree import Tree
from ddtree_ext.kernels.attention import tree_attention
from ddtree_ext.kernels.attention_scratch import AttentionScratch, Tiles, soonest
from ddtree_ext.kernels.rows import expand_rows

POISON = 1234.0
SMALL, LARGE = 99 << 10, 227 << 10
"""Bytes of shared memory that a block may use on sm_86 and sm_120, and on sm_90."""
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Model:
    heads: int
    kv_heads: int
    size: int
    block_size: int
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Request:
    """`rows` query rows above `prefix` committed tokens; tree None: a chunk of a prompt, not ours to attend."""

    prefix: int
    rows: int
    tree: Tree | None


def expected(request: Request, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """q [rows, Hq, D], k and v [prefix + rows, Hkv, D], all float64: every row over the keys it may see."""
    assert request.tree is not None
    out = torch.empty_like(q)
    for i in range(request.rows):
        dead = i > request.tree.num_nodes
        own = [i] if dead else list(request.tree.path(i))
        keys = [*range(request.prefix), *(request.prefix + j for j in own)]
        for head in range(q.shape[1]):
            kv = head // (q.shape[1] // k.shape[1])
            weight = torch.softmax(k[keys, kv] @ q[i, head] * scale, 0)
            out[i, head] = weight @ v[keys, kv]
    return out


def check(model: Model, requests: list[Request], budget: int, *, splits: int, seed: int) -> None:
    """Caches hold NaN where no request stores a token, outputs a sentinel, scratch NaN; blocks are shuffled."""
    gen = torch.Generator(DEVICE).manual_seed(seed)
    trees = stored([r.tree for r in requests], budget)
    lengths = [r.rows for r in requests]
    seq_lens = [r.prefix + r.rows for r in requests]
    table_width = max(-(-n // model.block_size) for n in seq_lens) + 1
    blocks = torch.randperm(len(requests) * table_width, generator=gen).view(len(requests), table_width).int()
    # K and V of a token lie side by side, heads outside tokens: strides unlike the shape's own.
    shape = (blocks.numel(), model.kv_heads, model.block_size, 2 * model.size)
    cache = torch.full(shape, torch.nan, dtype=model.dtype)
    k_cache, v_cache = cache.transpose(1, 2).split(model.size, dim=-1)
    keys = []
    for r, n in enumerate(seq_lens):
        k, v = torch.randn(2, n, model.kv_heads, model.size, generator=gen).to(model.dtype)
        at = torch.arange(n)
        k_cache[blocks[r, at // model.block_size].long(), at % model.block_size] = k
        v_cache[blocks[r, at // model.block_size].long(), at % model.block_size] = v
        keys.append((k.double(), v.double()))
    q = torch.randn(sum(lengths), model.heads, model.size, generator=gen).to(model.dtype)
    rows = TreeRows.allocate(len(requests), sum(lengths), DEVICE)
    is_tree = int32([r.tree is not None for r in requests])
    path = torch.zeros(len(requests), trees.rows, dtype=torch.int32)
    expand_rows(torch.arange(len(requests)), starts(lengths), int32(seq_lens), is_tree, path, trees, rows)
    group = model.heads // model.kv_heads
    scratch = AttentionScratch.allocate(
        len(requests),
        budget + 1,
        model.heads,
        model.kv_heads,
        model.size,
        DEVICE,
        splits=splits,
        tiles=Tiles.on(
            SMALL, 84, model.size, model.dtype.itemsize, (budget + 1) * group
        ),  # as on a GPU: several of them
    )
    scratch.partial.fill_(torch.nan)
    scratch.lse.fill_(torch.nan)
    out = torch.full_like(q, POISON)
    scale = model.size**-0.5
    tree_attention(q, k_cache, v_cache, blocks, int32(seq_lens), starts(lengths), rows, out, scale, scratch)
    at = 0
    for request, (k, v) in zip(requests, keys, strict=True):
        mine = slice(at, at + request.rows)
        if request.tree is None:
            assert (out[mine] == POISON).all()
        else:
            tolerance = TOLERANCE[model.dtype]
            truth = expected(request, q[mine].double(), k, v, scale)
            torch.testing.assert_close(out[mine].double(), truth, rtol=tolerance, atol=tolerance)
        at += request.rows


@st.composite
def requests_of(draw: st.DrawFn, budget: int, longest: int) -> list[Request]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        prefix = draw(st.integers(0, longest))
        if draw(st.integers(0, 3)) == 0:
            found.append(Request(prefix, draw(st.integers(0, 70)), None))
        else:
            tree = random_tree(rng, int(rng.integers(0, budget + 1)), depth=7)
            found.append(Request(prefix, draw(st.integers(1, budget + 1)), tree))
    return found


@settings(max_examples=20, deadline=None)
@given(
    st.data(),
    st.sampled_from([(4, 2), (2, 2), (6, 1), (12, 2)]),
    st.sampled_from([32, 64, 128, 256]),
    st.sampled_from([16, 32, 24, 7, 272]),
    st.sampled_from([1, 2, 4, 16]),
    st.integers(0, 1000),
)
def test_unequal_requests(
    data: st.DataObject, heads: tuple[int, int], size: int, block_size: int, splits: int, seed: int
) -> None:
    """Prefixes of 0 to 300 tokens: also splits without a tile, tiles that a row may not see, cut and dead rows."""
    budget = data.draw(st.sampled_from([1, 5, 15, 40]))
    requests = data.draw(requests_of(budget, 300).filter(lambda found: any(r.tree is not None for r in found)))
    check(Model(*heads, size, block_size), requests, budget, splits=splits, seed=seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [32, 64, 128, 256])
def test_types_and_sizes(dtype: torch.dtype, size: int) -> None:
    rng = np.random.default_rng(size)
    requests = [Request(90, 22, random_tree(rng, 21)), Request(33, 40, None), Request(5, 22, random_tree(rng, 13))]
    check(Model(6, 2, size, 16, dtype), requests, 21, splits=2, seed=size)


def test_the_largest_tree_uses_the_sign_bit() -> None:
    tree = Tree.root()
    for row in range(63):
        tree = tree.grown(0 if row < 3 else row - 2, row, 0, np.float32(0))
    assert tree.ancestor_word(63) < 0
    check(Model(4, 2, 64, 16), [Request(17, 64, tree), Request(0, 64, tree)], 63, splits=2, seed=0)


def test_a_long_prefix_fills_many_splits() -> None:
    tree = random_tree(np.random.default_rng(4), 6)
    check(Model(4, 2, 32, 16), [Request(1500, 7, tree), Request(0, 7, tree)], 6, splits=8, seed=4)


def test_an_interpreter_takes_one_tile_for_everything() -> None:
    (tiles,) = Tiles.of(torch.device("cpu"), 64, 2, members=6 * 20, rows=24 * 20)
    assert (tiles.queries, tiles.combined) == (128, 512)


@pytest.mark.parametrize(
    ("capability", "memory", "layouts"),
    [
        ((8, 6), SMALL, [(64, 32)]),  # RTX A6000
        ((8, 9), SMALL, [(64, 32)]),
        ((8, 0), 163 << 10, [(64, 32)]),  # A100: less than the larger tiles take
        ((9, 0), LARGE, [(64, 64), (128, 64)]),  # H200
        ((12, 0), SMALL, [(64, 32)]),  # newer than the H200, and its blocks have less
    ],
)
def test_tiles_go_by_the_shared_memory_of_a_block(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], memory: int, layouts: list[tuple[int, int]]
) -> None:
    """Heads of 256 in 16 bits, a tree of 64 rows; queries and keys of a tile."""
    major, minor = capability
    device = SimpleNamespace(major=major, minor=minor, multi_processor_count=100, shared_memory_per_block_optin=memory)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    found = Tiles.of(torch.device("cuda", 0), 256, 2, members=64 * 6, rows=64 * 24)
    assert [(tiles.queries, tiles.keys) for tiles in found] == layouts


def test_large_batches_are_split_less() -> None:
    scratch = AttentionScratch.allocate(4, 3, 4, 2, 32, "cpu", splits=16)
    assert [scratch.layout(r, 6)[1] for r in (1, 4)] == [16, 16]
    few = AttentionScratch.allocate(5, 3, 4, 2, 32, "cpu")
    assert [few.layout(r, 6)[1] for r in (1, 5)] == [1, 1]


@pytest.mark.parametrize(
    ("requests", "rows", "queries", "splits"),
    [
        (1, 16, 64, 16),  # few programs: the small tile makes more of them
        (1, 32, 64, 11),  # 3 tiles of 4 heads, 11 times: one turn of 132
        (8, 16, 128, 4),  # one turn of 128
        (8, 64, 128, 4),
        (64, 16, 128, 1),
    ],
)
def test_an_h200_is_kept_full(requests: int, rows: int, queries: int, splits: int) -> None:
    """24 heads and 4 KV heads of 256. What is expected for (1, 32) and (8, 16) was the fastest there in a sweep."""
    layouts = Tiles.on(LARGE, 132, 256, 2, rows * 6)
    tiles, found = soonest(layouts, requests * 4, rows * 6, max(1, min(16, 64 // requests)))
    assert (tiles.queries, found) == (queries, splits)


@given(st.integers(1, 2000), st.integers(1, 300), st.integers(1, 16), st.integers(1, 400))
def test_no_other_layout_ends_sooner(heads: int, programs: int, limit: int, members: int) -> None:
    layouts = (Tiles(64, 64, 4, 8, 3, programs), Tiles(128, 64, 4, 8, 3, programs, cost=1.5))

    def turns(tiles: Tiles, splits: int) -> Fraction:
        parts = heads * math.ceil(Fraction(members, tiles.queries))
        return Fraction(tiles.cost) * math.ceil(Fraction(parts * splits, programs)) / splits

    best = soonest(layouts, heads, members, limit)
    assert 1 <= best[1] <= limit
    assert all(turns(*best) <= turns(tiles, splits) for tiles in layouts for splits in range(1, limit + 1))


def test_what_the_kernel_cannot_take_is_refused() -> None:
    with pytest.raises(ValueError, match="head sizes"):
        AttentionScratch.allocate(1, 4, 4, 2, 80, DEVICE)
    with pytest.raises(ValueError, match="do not divide"):
        AttentionScratch.allocate(1, 4, 5, 2, 64, DEVICE)
    scratch = AttentionScratch.allocate(1, 4, 4, 2, 64, DEVICE)
    rows = TreeRows.allocate(1, 4, DEVICE)
    q, cache = torch.zeros(4, 4, 64), torch.zeros(1, 16, 2, 64)
    table, lens = int32([0]).view(1, 1), int32([4])
    with pytest.raises(ValueError, match="one type"):
        tree_attention(q.half(), cache, cache, table, lens, starts([4]), rows, q.half(), 1.0, scratch)
    with pytest.raises(ValueError, match="scratch is for"):
        tree_attention(q[:, :2], cache, cache, table, lens, starts([4]), rows, q, 1.0, scratch)


def test_more_requests_than_the_scratch_has_room_for_are_refused_before_anything_is_written() -> None:
    scratch = AttentionScratch.allocate(2, 2, 2, 1, 32, "cpu")
    out = torch.full((6, 2, 32), POISON)
    cache = torch.zeros(3, 16, 1, 32)
    rows = TreeRows.allocate(3, 6, "cpu")
    rows.tree_len.fill_(2)
    with pytest.raises(ValueError, match="3 requests; scratch is for 2 at most"):
        tree_attention(
            out, cache, cache, int32([[0], [1], [2]]), int32([2] * 3), starts([2] * 3), rows, out, 1.0, scratch
        )
    assert (out == POISON).all()
    assert not scratch.partial.any()
