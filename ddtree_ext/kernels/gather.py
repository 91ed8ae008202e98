"""Gathers the accepted rows of a flat batch to the front of their requests: the drafter then reads them as a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class RowPointers:
    """Addresses of A tensors of one form, [T, H] each, for one launch over all of them.

    pointers [A] int64, on their device; they hold while the tensors do, which is for the caller to know: the tensors
    themselves may be large and are not kept.
    """

    addresses: tuple[int, ...]
    pointers: torch.Tensor

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> RowPointers:
        """Raises ValueError where forms differ, or rows are not contiguous elements of 16 or 32 bits."""
        kinds = {(tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in tensors}
        if len(kinds) != 1:
            raise ValueError(
                f"tensors whose rows are gathered together must have one form; found {sorted(map(str, kinds))}"
            )
        ((_, stride, dtype),) = kinds
        if stride[1] != 1 or dtype.itemsize not in {2, 4}:
            raise ValueError(f"rows must be contiguous elements of 16 or 32 bits, not {dtype} with strides {stride}")
        addresses = tuple(tensor.data_ptr() for tensor in tensors)
        return cls(addresses, torch.tensor(addresses, dtype=torch.int64).to(tensors[0].device, non_blocking=True))


@triton.jit  # type: ignore[untyped-decorator]
def _gather_kernel(
    pointers_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    path_ptr: tl.tensor,
    num_sampled_ptr: tl.tensor,
    is_tree_ptr: tl.tensor,
    row_halves: tl.tensor,
    path_row: tl.tensor,
    halves: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    request = tl.program_id(0).to(tl.int64)
    if tl.load(is_tree_ptr + request) == 0:
        return
    # Rows are moved as 16-bit units, whatever they hold.
    rows_ptr = tl.load(pointers_ptr + tl.program_id(2)).to(tl.pointer_type(tl.int16))
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = unit < halves
    start = tl.load(query_start_ptr + request).to(tl.int64)
    # Ascending order is safe in place: path[i] >= i and rises, and a column stays with its thread.
    for i in tl.range(0, tl.load(num_sampled_ptr + request)):
        row = tl.load(path_ptr + request * path_row + i)
        if row != i:
            values = tl.load(rows_ptr + (start + row) * row_halves + unit, mask=here)
            tl.store(rows_ptr + (start + i) * row_halves + unit, values, mask=here)


def gather_rows(
    tensors: Sequence[torch.Tensor],
    pointers: RowPointers,
    query_start_loc: torch.Tensor,
    path: torch.Tensor,
    num_sampled: torch.Tensor,
    is_tree: torch.Tensor,
) -> None:
    """In each of `tensors`, row start + i becomes row start + path[i], for i below num_sampled; all others stay.

    tensors:         [T, H] each, of the addresses in `pointers`
    query_start_loc: [R + 1] int32
    path:            [R, N] int32, rising; path[:, 0] = 0, the root
    num_sampled:     [R] int32, accepted rows with the root
    is_tree:         [R] int32, 0: the request's rows stay
    """
    form = tensors[0]
    size = form.dtype.itemsize // 2
    halves = form.shape[1] * size
    block = min(2048, triton.next_power_of_2(halves))
    _gather_kernel[(num_sampled.shape[0], triton.cdiv(halves, block), len(tensors))](
        pointers.pointers,
        query_start_loc,
        path,
        num_sampled,
        is_tree,
        form.stride(0) * size,
        path.stride(0),
        halves,
        BLOCK=block,
        num_warps=4,
    )
