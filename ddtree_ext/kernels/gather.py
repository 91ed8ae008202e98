"""Gathers the accepted rows of a flat batch to the front of their requests: the drafter then reads them as a chain."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _gather_kernel(
    source_ptr: tl.tensor,
    target_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    path_ptr: tl.tensor,
    num_sampled_ptr: tl.tensor,
    is_tree_ptr: tl.tensor,
    source_row: tl.tensor,
    target_row: tl.tensor,
    path_row: tl.tensor,
    width: tl.tensor,
    IN_PLACE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    request = tl.program_id(0).to(tl.int64)
    if tl.load(is_tree_ptr + request) == 0:
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = column < width
    start = tl.load(query_start_ptr + request).to(tl.int64)
    # In place, ascending order is safe: path[i] >= i and rises, and a column stays with its thread.
    for i in tl.range(0, tl.load(num_sampled_ptr + request)):
        row = tl.load(path_ptr + request * path_row + i)
        if (row != i) | (not IN_PLACE):
            values = tl.load(source_ptr + (start + row) * source_row + column, mask=here)
            tl.store(target_ptr + (start + i) * target_row + column, values, mask=here)


def gather_rows(
    source: torch.Tensor,
    query_start_loc: torch.Tensor,
    path: torch.Tensor,
    num_sampled: torch.Tensor,
    is_tree: torch.Tensor,
    target: torch.Tensor,
) -> None:
    """Row start + i of `target` becomes row start + path[i] of `source`, for i below num_sampled; all others stay.

    source, target:  [T, H] of one type, last dimension contiguous; the same tensor, or without overlap
    query_start_loc: [R + 1] int32
    path:            [R, N] int32, rising; path[:, 0] = 0, the root
    num_sampled:     [R] int32, accepted rows with the root
    is_tree:         [R] int32, 0: the request's rows stay
    Raises ValueError when source and target differ in width or type.
    """
    if source.shape[1] != target.shape[1] or source.dtype != target.dtype:
        kinds = f"{source.shape[1]} x {source.dtype} and {target.shape[1]} x {target.dtype}"
        raise ValueError(f"rows to gather and rows to write differ: {kinds}")
    width = source.shape[1]
    block = min(1024, triton.next_power_of_2(width))
    _gather_kernel[(num_sampled.shape[0], triton.cdiv(width, block))](
        source,
        target,
        query_start_loc,
        path,
        num_sampled,
        is_tree,
        source.stride(0),
        target.stride(0),
        path.stride(0),
        width,
        IN_PLACE=source.data_ptr() == target.data_ptr(),
        BLOCK=block,
        num_warps=4,
    )
