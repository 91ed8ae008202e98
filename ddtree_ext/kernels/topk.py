"""The k largest log-probabilities of every row of logits: two launches, logits read once, grids that follow shapes alone.

A chunk of the vocabulary is read as tiles. Element j of all its tiles is column j; a lane keeps its columns' maxima, the
tiles where they stand, and running sums of exponentials. The k largest elements of a chunk stand in the k columns of the
largest maxima, so only those are looked at again, from the cache: no sort, no threshold, no branch on data. A second
launch (topk_merge.py) merges the candidates and the sums of the chunks.

What is compared are integer keys: the value, made orderable, above the complemented id. So all keys of a row differ, and
of equal values the smaller id comes first. Candidates carry their ids, and chunks their own maximum and sum: those of
other ranks' shards of the vocabulary are merged in the same way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ddtree_ext.kernels.topk_merge import LEAST, largest, merge_chunks, packed, unpacked
from ddtree_ext.kernels.topk_scratch import TopkScratch


@triton.jit  # type: ignore[untyped-decorator]
def _tile(
    chunk_ptr: tl.tensor,
    here: tl.tensor,
    left: tl.tensor,
    tile: tl.tensor,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,
) -> tl.tensor:
    """Logits of a tile of the chunk that begins at chunk_ptr, of `left` elements; -inf beyond it, and in rows not `here`."""
    local = tile * BLOCK + tl.arange(0, BLOCK)[None, :]
    return tl.load(chunk_ptr + local, mask=here & (local < left) & (tile < TILES), other=float("-inf"))


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _chunk_kernel(
    logits_ptr: tl.tensor,
    keys_ptr: tl.tensor,
    high_ptr: tl.tensor,
    total_ptr: tl.tensor,
    rows: tl.tensor,
    logits_row: tl.tensor,
    first_id: tl.tensor,
    V: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,
    BITS: tl.constexpr,
) -> None:
    DTYPE: tl.constexpr = logits_ptr.dtype.element_ty
    LOWEST: tl.constexpr = -(1 << (2 * BITS - 1))
    LOWEST_WIDE: tl.constexpr = -(1 << 63)
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    start = chunk * (BLOCK * TILES)
    column = tl.arange(0, BLOCK)[None, :]
    logits_ptr += row * logits_row + start

    best = tl.full([ROWS, BLOCK], LEAST, tl.float32)
    from_tile = tl.zeros([ROWS, BLOCK], tl.int32)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    # Three tiles are under way while one is counted: few warps read here, so each must have several loads in flight.
    first = _tile(logits_ptr, row < rows, V - start, 0, BLOCK, TILES)
    second = _tile(logits_ptr, row < rows, V - start, 1, BLOCK, TILES)
    third = _tile(logits_ptr, row < rows, V - start, 2, BLOCK, TILES)
    for tile in tl.range(0, TILES, loop_unroll_factor=4):
        value = first.to(tl.float32)
        first, second = second, third
        third = _tile(logits_ptr, row < rows, V - start, tile + 3, BLOCK, TILES)
        # Of the old maximum and the new value the larger counts 1, the other e^-distance: one exponential an element.
        other = tl.exp(-tl.abs(value - best))
        higher = value > best
        total = tl.where(higher, total * other + 1.0, total + other)
        best = tl.where(higher, value, best)
        from_tile = tl.where(higher, tile, from_tile)

    high = tl.max(best, 1)[:, None]
    at = row * chunks + chunk
    tl.store(high_ptr + at, high, mask=row < rows)
    summed = tl.sum(total * tl.exp(best - high), 1)[:, None]
    tl.store(total_ptr + at, summed, mask=row < rows)

    best = tl.where(total > 0.0, best, float("-inf"))  # a column of masked tokens: its first tile stands for it
    keys = tl.where(start + column < V, packed(best, from_tile * BLOCK + column, BITS, DTYPE), LOWEST)
    keys = largest(keys, LOWEST, ROWS, RANKS, K)
    if TILES > 1:  # these are the columns; now their elements
        _, local = unpacked(keys, BITS, DTYPE)
        local = (local % BLOCK)[:, :, None] + (tl.arange(0, TILES) * BLOCK)[None, None, :]
        here = (keys > LOWEST)[:, :, None] & (start + local < V) & (row < rows)[:, :, None]
        value = tl.load(logits_ptr[:, :, None] + local, mask=here, other=float("-inf")).to(tl.float32)
        keys = tl.where(here, packed(value, local, BITS, DTYPE), LOWEST)
        keys = largest(tl.reshape(keys, [ROWS, K * TILES]), LOWEST, ROWS, RANKS, K)
    value, local = unpacked(keys, BITS, DTYPE)
    wide = tl.where(keys > LOWEST, packed(value, first_id + start + local, 32, tl.float32), LOWEST_WIDE)
    tl.store(keys_ptr + at * K + tl.arange(0, K)[None, :], wide, mask=row < rows)


def top_logprobs(logits: torch.Tensor, scratch: TopkScratch, logprobs: torch.Tensor, ids: torch.Tensor) -> None:
    """Write the k largest log-probabilities of every row, descending, and their ids; of equal ones the smaller id first.

    logits:   [L, V] bfloat16, float16 or float32, any stride between rows; finite or -inf (a masked token, which comes
              last with log-probability -inf and its own id). Float32's lowest number beside -inf may tie out of order.
    logprobs: [L, k] float32; ids: [L, k] int64; both contiguous, k the scratch's ranks
    Raises ValueError on shapes or types that do not fit.
    """
    read_chunks(logits, scratch)
    merge_chunks(logits.shape[0], scratch, logprobs, ids)


def read_chunks(logits: torch.Tensor, scratch: TopkScratch) -> None:
    """The first launch: what each chunk of the vocabulary has, into the scratch. Logits as for top_logprobs."""
    rows, vocabulary = logits.shape
    if vocabulary != scratch.vocabulary or rows > scratch.keys.shape[0]:
        most = f"at most {scratch.keys.shape[0]} rows of {scratch.vocabulary}"
        raise ValueError(f"logits are {tuple(logits.shape)}; scratch is for {most}")
    if logits.dtype not in {torch.bfloat16, torch.float16, torch.float32} or logits.stride(1) != 1:
        raise ValueError(f"logits must be bfloat16, float16 or float32 with contiguous rows, not {logits.dtype}")
    _, chunks, side = scratch.keys.shape
    at_once = scratch.rows_at_once(rows)
    _chunk_kernel[(triton.cdiv(rows, at_once), chunks)](
        logits,
        scratch.keys,
        scratch.high,
        scratch.total,
        rows,
        logits.stride(0),
        scratch.first,
        V=vocabulary,
        ROWS=at_once,
        RANKS=scratch.ranks,
        K=side,
        BLOCK=scratch.block,
        TILES=scratch.tiles,
        BITS=8 * logits.element_size(),
        num_warps=scratch.warps,
    )
