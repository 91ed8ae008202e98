"""Counts what the trees of a step did, in one launch: the totals that engine/counters.py describes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _count_kernel(
    tree_len_ptr: tl.tensor,
    num_sampled_ptr: tl.tensor,
    path_ptr: tl.tensor,
    totals_ptr: tl.tensor,
    path_row: tl.tensor,
    width: tl.tensor,
    N: tl.constexpr,
    SUMS: tl.constexpr,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    request = tl.program_id(0)
    nodes = tl.load(tree_len_ptr + request) - 1
    sampled = tl.load(num_sampled_ptr + request)
    if (nodes < 1) | (sampled < 1):
        return
    one = tl.full([], 1, tl.int64)
    place = tl.arange(0, BLOCK)
    row = tl.load(path_ptr + request * path_row + place, mask=place < N, other=-1)
    tl.atomic_add(totals_ptr, one)
    tl.atomic_add(totals_ptr + 1, nodes.to(tl.int64))
    tl.atomic_add(totals_ptr + 2, tl.sum((row > place).to(tl.int64), 0))
    tl.atomic_add(totals_ptr + SUMS + row, tl.full([BLOCK], 1, tl.int64), mask=row > 0)
    accepted = tl.minimum(sampled - 1, width)
    tl.atomic_add(totals_ptr + SUMS + NODES + accepted, one)


def count_trees(
    tree_len: torch.Tensor, num_sampled: torch.Tensor, path: torch.Tensor, totals: torch.Tensor, sums: int, nodes: int
) -> None:
    """Adds one step's requests to `totals`; those without a tree, or that sampled nothing, count for nothing.

    tree_len:    [R] int32, the rows of each request's tree, its root among them; 0: no tree
    num_sampled: [R] int32, accepted rows with the root
    path:        [R, N] int32, the accepted rows, -1 beyond
    totals:      [sums + nodes + width + 1] int64: trees, nodes, nodes off the spine; by node; histogram of what was accepted
    """
    requests, rows = path.shape
    _count_kernel[(requests,)](
        tree_len,
        num_sampled,
        path,
        totals,
        path.stride(0),
        totals.shape[0] - sums - nodes - 1,
        N=rows,
        SUMS=sums,
        NODES=nodes,
        BLOCK=triton.next_power_of_2(rows),
        num_warps=1,
    )
