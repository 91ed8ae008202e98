"""Merges what chunks of a vocabulary found: those of one rank's scratch, or of every rank's shard.

A rank that has a shard of the vocabulary narrows its chunks to one, [K + 1] integers a row; these are exchanged instead of
the logits, and every rank merges the same ones to the same result.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ddtree_ext.kernels.topk_scratch import MERGE_WARPS, TopkScratch

LEAST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)
"""float32's lowest number: where a maximum begins, for -inf - -inf must not arise."""


@triton.jit  # type: ignore[untyped-decorator]
def packed(value: tl.tensor, below: tl.tensor, BITS: tl.constexpr, DTYPE: tl.constexpr) -> tl.tensor:
    """Integers of 2 BITS bits that order as (value, smaller `below` first). The value is one of DTYPE's, of BITS bits."""
    SIGNED: tl.constexpr = tl.int16 if BITS == 16 else tl.int32
    KEY: tl.constexpr = tl.int32 if BITS == 16 else tl.int64
    bits = tl.where(value == 0.0, 0.0, value).to(DTYPE).to(SIGNED, bitcast=True).to(KEY)  # -0.0 equals 0.0
    bits = tl.where(bits < 0, bits ^ ((1 << (BITS - 1)) - 1), bits)
    return (bits << BITS) | (((1 << BITS) - 1) - below.to(KEY))


@triton.jit  # type: ignore[untyped-decorator]
def unpacked(key: tl.tensor, BITS: tl.constexpr, DTYPE: tl.constexpr) -> tl.tensor:
    """(value as float32, `below` as int32) of a key."""
    SIGNED: tl.constexpr = tl.int16 if BITS == 16 else tl.int32
    bits = key >> BITS
    bits = tl.where(bits < 0, bits ^ ((1 << (BITS - 1)) - 1), bits)
    below = ((1 << BITS) - 1) - (key & ((1 << BITS) - 1))
    return bits.to(SIGNED).to(DTYPE, bitcast=True).to(tl.float32), below.to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def largest(
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
def _over_chunks(
    keys_ptr: tl.tensor,
    high_ptr: tl.tensor,
    total_ptr: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    keys_row: tl.tensor,
    keys_chunk: tl.tensor,
    sums_row: tl.tensor,
    sums_chunk: tl.tensor,
    CHUNKS: tl.constexpr,
    CHUNKS_SIDE: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    K: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Of rows [ROWS, 1] over their chunks: the largest keys [ROWS, K], the largest logit and the sum above it, [ROWS, 1]."""
    LOWEST: tl.constexpr = -(1 << 63)
    chunk = tl.arange(0, CHUNKS_SIDE)[None, :]
    here = (row < rows) & (chunk < CHUNKS)
    at = row * sums_row + chunk * sums_chunk
    highs = tl.load(high_ptr + at, mask=here, other=LEAST)
    totals = tl.load(total_ptr + at, mask=here, other=0.0)
    high = tl.max(highs, 1)[:, None]
    total = tl.sum(totals * tl.exp(highs - high), 1)[:, None]

    candidate = tl.arange(0, CHUNKS_SIDE * K)[None, :]
    here = (row < rows) & (candidate < CHUNKS * K)
    at = row * keys_row + (candidate // K) * keys_chunk + candidate % K
    keys = tl.load(keys_ptr + at, mask=here, other=LOWEST)
    if CHUNKS > 1:
        keys = largest(keys, LOWEST, ROWS, RANKS, K)
    return keys, high, total


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _merge_kernel(
    keys_ptr: tl.tensor,
    high_ptr: tl.tensor,
    total_ptr: tl.tensor,
    logprobs_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    rows: tl.tensor,
    keys_row: tl.tensor,
    keys_chunk: tl.tensor,
    sums_row: tl.tensor,
    sums_chunk: tl.tensor,
    CHUNKS: tl.constexpr,
    CHUNKS_SIDE: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    K: tl.constexpr,
) -> None:
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    keys, high, total = _over_chunks(
        keys_ptr,
        high_ptr,
        total_ptr,
        row,
        rows,
        keys_row,
        keys_chunk,
        sums_row,
        sums_chunk,
        CHUNKS,
        CHUNKS_SIDE,
        ROWS,
        RANKS,
        K,
    )
    value, token = unpacked(keys, 32, tl.float32)
    logprob = (value - high) - tl.log(tl.where(total > 0.0, total, 1.0))  # no sum: all is masked
    rank = tl.arange(0, K)[None, :]
    here = (row < rows) & (rank < RANKS)
    tl.store(logprobs_ptr + row * RANKS + rank, logprob, mask=here)
    tl.store(ids_ptr + row * RANKS + rank, token.to(tl.int64), mask=here)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _narrow_kernel(
    keys_ptr: tl.tensor,
    high_ptr: tl.tensor,
    total_ptr: tl.tensor,
    out_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    rows: tl.tensor,
    keys_row: tl.tensor,
    keys_chunk: tl.tensor,
    sums_row: tl.tensor,
    sums_chunk: tl.tensor,
    CHUNKS: tl.constexpr,
    CHUNKS_SIDE: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    K: tl.constexpr,
) -> None:
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    keys, high, total = _over_chunks(
        keys_ptr,
        high_ptr,
        total_ptr,
        row,
        rows,
        keys_row,
        keys_chunk,
        sums_row,
        sums_chunk,
        CHUNKS,
        CHUNKS_SIDE,
        ROWS,
        RANKS,
        K,
    )
    tl.store(out_ptr + row * (K + 1) + tl.arange(0, K)[None, :], keys, mask=row < rows)
    at = row * (2 * K + 2) + 2 * K  # the two float32's in the row's last 64 bits
    tl.store(sums_ptr + at, high, mask=row < rows)
    tl.store(sums_ptr + at + 1, total, mask=row < rows)


def merge_chunks(rows: int, scratch: TopkScratch, logprobs: torch.Tensor, ids: torch.Tensor) -> None:
    """The second launch: of what the scratch holds of the first `rows` rows. Outputs as of top_logprobs."""
    _merge(rows, (scratch.keys, scratch.high, scratch.total), scratch, logprobs, ids)


def narrow_chunks(rows: int, scratch: TopkScratch, found: torch.Tensor) -> None:
    """The second launch of a rank with a shard: its chunks as one. found: [>= rows, K + 1] int64, contiguous; of each row
    the keys, and in the last 64 bits two float32's, the largest logit and the sum of exponentials above it.

    Raises ValueError on shapes or types that do not fit.
    """
    side = scratch.keys.shape[2]
    fits = found.shape[0] >= rows and found.shape[1:] == (side + 1,) and found.is_contiguous()
    if not fits or found.dtype != torch.int64:
        kind = f"{tuple(found.shape)} {found.dtype}"
        raise ValueError(f"found is {kind}; it must be a contiguous ({rows}, {side + 1}) int64")
    _launch(
        _narrow_kernel, rows, (scratch.keys, scratch.high, scratch.total), scratch, found, found.view(torch.float32)
    )


def merge_ranks(found: torch.Tensor, scratch: TopkScratch, logprobs: torch.Tensor, ids: torch.Tensor) -> None:
    """Of what every rank narrowed, found [ranks, L, K + 1] int64: what top_logprobs writes of the whole vocabulary.

    Outputs as of top_logprobs. Raises ValueError on shapes or types that do not fit.
    """
    side = scratch.keys.shape[2]
    if found.shape[2:] != (side + 1,) or found.dtype != torch.int64 or found.stride(2) != 1:
        kind = f"{tuple(found.shape)} {found.dtype}"
        raise ValueError(f"found is {kind}; it must be (ranks, rows, {side + 1}) int64 with contiguous rows")
    by_row, sums = found.transpose(0, 1), found.transpose(0, 1).view(torch.float32)
    _merge(found.shape[1], (by_row, sums[..., -2], sums[..., -1]), scratch, logprobs, ids)


Chunks = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # by row and chunk: keys, largest logits, sums


def _merge(rows: int, chunks: Chunks, scratch: TopkScratch, logprobs: torch.Tensor, ids: torch.Tensor) -> None:
    for name, tensor, dtype in (("logprobs", logprobs, torch.float32), ("ids", ids, torch.int64)):
        if tuple(tensor.shape) != (rows, scratch.ranks) or tensor.dtype != dtype or not tensor.is_contiguous():
            kind = f"{tuple(tensor.shape)} {tensor.dtype}"
            raise ValueError(f"{name} is {kind}; it must be a contiguous ({rows}, {scratch.ranks}) {dtype}")
    _launch(_merge_kernel, rows, chunks, scratch, logprobs, ids)


def _launch(kernel: Any, rows: int, chunks: Chunks, scratch: TopkScratch, *outputs: torch.Tensor) -> None:
    """Both kernels read the chunks alike; they differ in their two outputs."""
    keys, high, total = chunks
    at_once = scratch.rows_at_once(rows)
    kernel[(triton.cdiv(rows, at_once),)](
        keys,
        high,
        total,
        *outputs,
        rows,
        *(keys.stride(0), keys.stride(1), high.stride(0), high.stride(1)),
        CHUNKS=keys.shape[1],
        CHUNKS_SIDE=triton.next_power_of_2(keys.shape[1]),
        ROWS=at_once,
        RANKS=scratch.ranks,
        K=scratch.keys.shape[2],
        num_warps=MERGE_WARPS,
    )
