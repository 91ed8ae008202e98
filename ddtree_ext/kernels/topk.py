"""The k largest log-probabilities of every row of logits: two launches, logits read once, grids that follow shapes alone.

A chunk of the vocabulary is read as tiles. Element j of all its tiles is column j; a lane keeps its columns' maxima, the
tiles where they stand, and running sums of exponentials. The k largest elements of a chunk stand in the k columns of the
largest maxima, so only those are looked at again, from the cache: no sort, no threshold, no branch on data. A second
launch merges the candidates and the sums of the chunks.

What is compared are integer keys: the value, made orderable, above the complemented id. So all keys of a row differ, and
of equal values the smaller id comes first. Candidates carry their ids, and chunks their own maximum and sum: chunks of
other ranks could be merged beside them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ddtree_ext.kernels.topk_scratch import MERGE_WARPS, TopkScratch

LEAST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)
"""float32's lowest number: where a maximum begins, for -inf - -inf must not arise."""


@triton.jit  # type: ignore[untyped-decorator]
def _packed(value: tl.tensor, below: tl.tensor, BITS: tl.constexpr, DTYPE: tl.constexpr) -> tl.tensor:
    """Integers of 2 BITS bits that order as (value, smaller `below` first). The value is one of DTYPE's, of BITS bits."""
    SIGNED: tl.constexpr = tl.int16 if BITS == 16 else tl.int32
    KEY: tl.constexpr = tl.int32 if BITS == 16 else tl.int64
    bits = tl.where(value == 0.0, 0.0, value).to(DTYPE).to(SIGNED, bitcast=True).to(KEY)  # -0.0 equals 0.0
    bits = tl.where(bits < 0, bits ^ ((1 << (BITS - 1)) - 1), bits)
    return (bits << BITS) | (((1 << BITS) - 1) - below.to(KEY))


@triton.jit  # type: ignore[untyped-decorator]
def _unpacked(key: tl.tensor, BITS: tl.constexpr, DTYPE: tl.constexpr) -> tl.tensor:
    """(value as float32, `below` as int32) of a key."""
    SIGNED: tl.constexpr = tl.int16 if BITS == 16 else tl.int32
    bits = key >> BITS
    bits = tl.where(bits < 0, bits ^ ((1 << (BITS - 1)) - 1), bits)
    below = ((1 << BITS) - 1) - (key & ((1 << BITS) - 1))
    return bits.to(SIGNED).to(DTYPE, bitcast=True).to(tl.float32), below.to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _largest(
    keys: tl.tensor, LOWEST: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, K: tl.constexpr
) -> tl.tensor:
    """[ROWS, K]: the RANKS largest keys of every row [ROWS, N], descending, then LOWEST. Keys above LOWEST differ."""
    rank = tl.arange(0, K)[None, :]
    found = tl.full([ROWS, K], LOWEST, keys.dtype)
    for r in tl.range(0, RANKS):
        top = tl.max(keys, 1)[:, None]
        found = tl.where(rank == r, top, found)
        keys = tl.where(keys == top, LOWEST, keys)
    return found


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
    keys = tl.where(start + column < V, _packed(best, from_tile * BLOCK + column, BITS, DTYPE), LOWEST)
    keys = _largest(keys, LOWEST, ROWS, RANKS, K)
    if TILES > 1:  # these are the columns; now their elements
        _, local = _unpacked(keys, BITS, DTYPE)
        local = (local % BLOCK)[:, :, None] + (tl.arange(0, TILES) * BLOCK)[None, None, :]
        here = (keys > LOWEST)[:, :, None] & (start + local < V) & (row < rows)[:, :, None]
        value = tl.load(logits_ptr[:, :, None] + local, mask=here, other=float("-inf")).to(tl.float32)
        keys = tl.where(here, _packed(value, local, BITS, DTYPE), LOWEST)
        keys = _largest(tl.reshape(keys, [ROWS, K * TILES]), LOWEST, ROWS, RANKS, K)
    value, local = _unpacked(keys, BITS, DTYPE)
    wide = tl.where(keys > LOWEST, _packed(value, start + local, 32, tl.float32), LOWEST_WIDE)
    tl.store(keys_ptr + at * K + tl.arange(0, K)[None, :], wide, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _merge_kernel(
    keys_ptr: tl.tensor,
    high_ptr: tl.tensor,
    total_ptr: tl.tensor,
    logprobs_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    rows: tl.tensor,
    CHUNKS: tl.constexpr,
    CHUNKS_SIDE: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    K: tl.constexpr,
) -> None:
    LOWEST: tl.constexpr = -(1 << 63)
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    chunk = tl.arange(0, CHUNKS_SIDE)[None, :]
    here = (row < rows) & (chunk < CHUNKS)
    highs = tl.load(high_ptr + row * CHUNKS + chunk, mask=here, other=LEAST)
    totals = tl.load(total_ptr + row * CHUNKS + chunk, mask=here, other=0.0)
    high = tl.max(highs, 1)[:, None]
    total = tl.sum(totals * tl.exp(highs - high), 1)[:, None]

    candidate = tl.arange(0, CHUNKS_SIDE * K)[None, :]
    here = (row < rows) & (candidate < CHUNKS * K)
    keys = tl.load(keys_ptr + row * (CHUNKS * K) + candidate, mask=here, other=LOWEST)
    if CHUNKS > 1:
        keys = _largest(keys, LOWEST, ROWS, RANKS, K)
    value, token = _unpacked(keys, 32, tl.float32)
    logprob = (value - high) - tl.log(tl.where(total > 0.0, total, 1.0))  # no sum: all is masked
    rank = tl.arange(0, K)[None, :]
    here = (row < rows) & (rank < RANKS)
    tl.store(logprobs_ptr + row * RANKS + rank, logprob, mask=here)
    tl.store(ids_ptr + row * RANKS + rank, token.to(tl.int64), mask=here)


def top_logprobs(logits: torch.Tensor, scratch: TopkScratch, logprobs: torch.Tensor, ids: torch.Tensor) -> None:
    """Write the k largest log-probabilities of every row, descending, and their ids; of equal ones the smaller id first.

    logits:   [L, V] bfloat16, float16 or float32, any stride between rows; finite or -inf (a masked token, which comes
              last with log-probability -inf and its own id). Float32's lowest number beside -inf may tie out of order.
    logprobs: [L, k] float32; ids: [L, k] int64; both contiguous, k the scratch's ranks
    Raises ValueError on shapes or types that do not fit.
    """
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
        V=vocabulary,
        ROWS=at_once,
        RANKS=scratch.ranks,
        K=side,
        BLOCK=scratch.block,
        TILES=scratch.tiles,
        BITS=8 * logits.element_size(),
        num_warps=scratch.warps,
    )
    merge_chunks(rows, scratch, logprobs, ids)


def merge_chunks(rows: int, scratch: TopkScratch, logprobs: torch.Tensor, ids: torch.Tensor) -> None:
    """The second launch: of what the scratch holds of the first `rows` rows, whichever rank's chunks these are."""
    for name, tensor, dtype in (("logprobs", logprobs, torch.float32), ("ids", ids, torch.int64)):
        if tuple(tensor.shape) != (rows, scratch.ranks) or tensor.dtype != dtype or not tensor.is_contiguous():
            kind = f"{tuple(tensor.shape)} {tensor.dtype}"
            raise ValueError(f"{name} is {kind}; it must be a contiguous ({rows}, {scratch.ranks}) {dtype}")
    _, chunks, side = scratch.keys.shape
    at_once = scratch.rows_at_once(rows)
    _merge_kernel[(triton.cdiv(rows, at_once),)](
        scratch.keys,
        scratch.high,
        scratch.total,
        logprobs,
        ids,
        rows,
        CHUNKS=chunks,
        CHUNKS_SIDE=triton.next_power_of_2(chunks),
        ROWS=at_once,
        RANKS=scratch.ranks,
        K=side,
        num_warps=MERGE_WARPS,
    )
