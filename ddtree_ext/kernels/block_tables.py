"""The block tables of all KV cache groups by their addresses: one launch serves every group.

vLLM makes many groups where layers come in unequal numbers (with a drafter of five layers, one group for each Gated DeltaNet
layer of the 27B), so what is done group by group costs the host more than the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class BlockTables:
    """G tables, [R, M] int32 each with an M of its own. It holds them: so the addresses stay valid.

    pointers [G] int64, data pointers; strides [G] int64, elements from row to row
    """

    tables: tuple[torch.Tensor, ...]
    pointers: torch.Tensor
    strides: torch.Tensor

    @classmethod
    def of(cls, tables: Sequence[torch.Tensor]) -> BlockTables:
        """Raises ValueError for a table that is not int32, or whose rows are not contiguous."""
        for group, table in enumerate(tables):
            if table.dtype != torch.int32 or table.stride(1) != 1:
                raise ValueError(f"block table {group} must be int32 with contiguous rows, not {table.dtype}")
        device = tables[0].device if tables else torch.device("cpu")
        return cls(
            tables=tuple(tables),
            pointers=torch.tensor([t.data_ptr() for t in tables], dtype=torch.int64, device=device),
            strides=torch.tensor([t.stride(0) for t in tables], dtype=torch.int64, device=device),
        )

    def are(self, tables: Sequence[torch.Tensor]) -> bool:
        """Whether these tables stand where those of `tables` do; how many of their rows are seen does not matter."""
        return len(tables) == len(self.tables) and all(
            ours.data_ptr() == theirs.data_ptr() and ours.stride(0) == theirs.stride(0)
            for ours, theirs in zip(self.tables, tables, strict=True)
        )


@triton.jit(do_not_specialize=["requests"])  # type: ignore[untyped-decorator]
def _slots_kernel(
    pointers_ptr: tl.tensor,
    strides_ptr: tl.tensor,
    groups_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    requests: tl.tensor,
    S: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    group = tl.load(groups_ptr + row)
    table_ptr = tl.load(pointers_ptr + group).to(tl.pointer_type(tl.int32))
    stride = tl.load(strides_ptr + group)
    for first in tl.range(0, S, BLOCK):
        request = first + tl.arange(0, BLOCK)
        slot = tl.load(table_ptr + request * stride, mask=request < requests, other=0)
        tl.store(slots_ptr + row * S + request, slot, mask=request < S)


def state_slots(tables: BlockTables, groups: torch.Tensor, requests: int, slots: torch.Tensor) -> None:
    """slots[g, r] becomes the first block of request r in the table of groups[g], for r below `requests`, and 0 beyond.

    groups: [G'] int32, of those that hold recurrent states; slots: [G', S] int32, contiguous
    """
    rows, size = slots.shape
    block = min(256, triton.next_power_of_2(size))
    _slots_kernel[(rows,)](tables.pointers, tables.strides, groups, slots, requests, S=size, BLOCK=block, num_warps=1)
