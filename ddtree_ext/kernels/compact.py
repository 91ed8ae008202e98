"""Moves the accepted rows' K and V to the slots right behind the prefix, for all attention layers in one launch.

The rows of a tree are written at base + row; what follows the prefix must be the accepted path alone. path[i] >= i and
rises with i, so copying in ascending order never reads a slot that was written before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ddtree_ext.kernels.block_tables import BlockTables


@dataclass(frozen=True)
class GroupedCache:
    """One layer's K and V, each [blocks, block_size, Hkv, D], and the KV cache group whose block table names its blocks."""

    group: int
    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True)
class CompactTable:
    """The caches of all layers of one form, K and V alike. P = 2 x layers.

    pointers [P] int64, data pointers; they stay valid while the caches live
    strides  [P, 3] int64, bytes from block to block, token to token, head to head
    groups   [P] int32, KV cache group of each
    """

    pointers: torch.Tensor
    strides: torch.Tensor
    groups: torch.Tensor
    block_size: int
    heads: int
    row_bytes: int

    @classmethod
    def of(cls, caches: Sequence[GroupedCache]) -> CompactTable:
        """Table of caches whose last dimension is contiguous; 16 or 32 bits.

        Raises ValueError where the layers' shapes or types differ, or a row is not contiguous.
        """
        planes = [plane for cache in caches for plane in (cache.k, cache.v)]
        kinds = {(tuple(plane.shape[1:]), plane.dtype) for plane in planes}
        if len(kinds) != 1:
            raise ValueError(f"KV caches of one table must have one shape and type; found {sorted(map(str, kinds))}")
        ((block_size, heads, size), dtype) = next(iter(kinds))
        if any(plane.stride(3) != 1 for plane in planes) or dtype.itemsize not in {2, 4}:
            raise ValueError(f"KV caches must have contiguous rows of 16 or 32 bits an element, not {dtype}")
        strides = [[stride * dtype.itemsize for stride in plane.stride()[:3]] for plane in planes]
        device = planes[0].device
        return cls(
            pointers=torch.tensor([plane.data_ptr() for plane in planes], dtype=torch.int64, device=device),
            strides=torch.tensor(strides, dtype=torch.int64, device=device),
            groups=torch.tensor([cache.group for cache in caches for _ in "kv"], dtype=torch.int32, device=device),
            block_size=block_size,
            heads=heads,
            row_bytes=size * dtype.itemsize,
        )


@triton.jit  # type: ignore[untyped-decorator]
def _compact_kernel(
    pointers_ptr: tl.tensor,
    strides_ptr: tl.tensor,
    groups_ptr: tl.tensor,
    tables_ptr: tl.tensor,
    table_rows_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    is_tree_ptr: tl.tensor,
    path_ptr: tl.tensor,
    consumed_ptr: tl.tensor,
    path_row: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    request = tl.program_id(0).to(tl.int64)
    plane = tl.program_id(1)
    accepted = tl.load(consumed_ptr + request) - 1
    if (tl.load(is_tree_ptr + request) == 0) | (accepted < 1):
        return
    path_ptr += request * path_row
    # A path whose last row stands in its place is a prefix of the rows: nothing has to move.
    if tl.load(path_ptr + accepted) == accepted:
        return
    group = tl.load(groups_ptr + plane)
    table_ptr = tl.load(tables_ptr + group).to(tl.pointer_type(tl.int32))
    table_ptr += request * tl.load(table_rows_ptr + group)
    query_len = tl.load(query_start_ptr + request + 1) - tl.load(query_start_ptr + request)
    base = tl.load(seq_lens_ptr + request) - query_len
    # Rows are moved as 16-bit units, whatever they hold.
    rows_ptr = tl.load(pointers_ptr + plane).to(tl.pointer_type(tl.int16))
    block_stride = tl.load(strides_ptr + plane * 3) // 2
    token_stride = tl.load(strides_ptr + plane * 3 + 1) // 2
    rows_ptr += tl.program_id(2) * (tl.load(strides_ptr + plane * 3 + 2) // 2)
    unit = tl.arange(0, BLOCK)
    for i in tl.range(1, accepted + 1):
        row = tl.load(path_ptr + i)
        if row != i:
            source = base + row
            target = base + i
            source_block = tl.load(table_ptr + source // BLOCK_SIZE).to(tl.int64) * block_stride
            target_block = tl.load(table_ptr + target // BLOCK_SIZE).to(tl.int64) * block_stride
            source_ptr = rows_ptr + source_block + (source % BLOCK_SIZE) * token_stride
            target_ptr = rows_ptr + target_block + (target % BLOCK_SIZE) * token_stride
            values = tl.load(source_ptr + unit, mask=unit < HALVES, other=0)
            tl.store(target_ptr + unit, values, mask=unit < HALVES)


def compact_kv(
    table: CompactTable,
    block_tables: BlockTables,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    is_tree: torch.Tensor,
    path: torch.Tensor,
    consumed: torch.Tensor,
) -> None:
    """Copy the token at flat position base + path[i] to base + i, for 0 < i < consumed, in every cache of the table.

    block_tables:    those of all KV cache groups
    seq_lens:        [R] int32 of the verify step, its rows included; query_start_loc: [R + 1] int32
    is_tree:         [R] int32, 0: nothing moves
    path:            [R, N] int32, the accepted rows; path[:, 0] = 0 is the root and stays
    consumed:        [R] int32, accepted rows with the root; 0 or 1: nothing moves
    """
    requests = seq_lens.shape[0]
    halves = table.row_bytes // 2
    _compact_kernel[(requests, table.pointers.shape[0], table.heads)](
        table.pointers,
        table.strides,
        table.groups,
        block_tables.pointers,
        block_tables.strides,
        seq_lens,
        query_start_loc,
        is_tree,
        path,
        consumed,
        path.stride(0),
        BLOCK_SIZE=table.block_size,
        HALVES=halves,
        BLOCK=triton.next_power_of_2(halves),
        num_warps=1,
    )
