"""Walks every request's tree along the target's sampled tokens: what was accepted, and which rows it stands in."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ddtree_ext.core.buffers import TreeBuffers


@triton.jit  # type: ignore[untyped-decorator]
def _walk_kernel(
    sampled_ptr: tl.tensor,
    node_tokens_ptr: tl.tensor,
    cu_num_logits_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    is_tree_ptr: tl.tensor,
    parents_ptr: tl.tensor,
    num_nodes_ptr: tl.tensor,
    out_tokens_ptr: tl.tensor,
    num_sampled_ptr: tl.tensor,
    path_ptr: tl.tensor,
    B: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    request = tl.program_id(0)
    start = tl.load(cu_num_logits_ptr + request)
    logits = tl.load(cu_num_logits_ptr + request + 1) - start
    slot = tl.load(slots_ptr + request)
    is_tree = (tl.load(is_tree_ptr + request) != 0) & (slot >= 0)
    nodes = tl.load(num_nodes_ptr + slot, mask=is_tree, other=0)
    nodes = tl.minimum(nodes, logits - 1)

    row = tl.arange(0, ROWS)
    live = (row >= 1) & (row <= nodes)
    tokens = tl.load(node_tokens_ptr + start + row, mask=live, other=-1)
    live &= tokens >= 0
    parents = tl.load(parents_ptr + slot * (B + 1) + row, mask=live, other=-2)

    out = tl.full([ROWS], -1, tl.int64)
    path = tl.where(row == 0, 0, -1)
    count = 0
    at = 0
    going = logits > 0
    while going:
        token = tl.load(sampled_ptr + start + at)
        out = tl.where(row == count, token, out)
        path = tl.where(row == count, at, path)
        count += 1
        at = tl.min(tl.where(live & (row > at) & (parents == at) & (tokens == token), row, ROWS), 0)
        going = at < ROWS

    tl.store(out_tokens_ptr + request * (B + 1) + row, out, mask=row <= B)
    tl.store(path_ptr + request * (B + 1) + row, path, mask=row <= B)
    tl.store(num_sampled_ptr + request, count)


def walk_trees(
    sampled: torch.Tensor,
    node_tokens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    slots: torch.Tensor,
    is_tree: torch.Tensor,
    trees: TreeBuffers,
    out_tokens: torch.Tensor,
    num_sampled: torch.Tensor,
    path: torch.Tensor,
) -> None:
    """Accept, from the root on, the child whose token the target sampled; the last sampled token is the bonus.

    sampled:       [num_logits] int64, the target's token at every row; a request's rows are its tree's rows 0..n, where
                   the tree may have been cut to n nodes
    node_tokens:   [num_logits] int64 or int32, every row's own token; below 0: a node that may not be accepted (a
                   placeholder, a token past the end of a grammar)
    cu_num_logits: [R + 1] int32, first row of every request in `sampled`, and the end
    slots:         [R] int64, request-state slots; below 0: no tree
    is_tree:       [R] int32, 0: no tree, only the first row's token is taken
    Written: out_tokens [R, N] int64, the accepted tokens and the bonus, then -1; num_sampled [R] int32, accepted + 1 (0
    for a request without rows); path [R, N] int32, path[:, 0] = 0 and path[:, i] the i-th accepted node's row, then -1.
    Raises ValueError when an output is not [R, N] and contiguous.
    """
    requests = slots.shape[0]
    for name, tensor in (("out_tokens", out_tokens), ("path", path)):
        if tuple(tensor.shape) != (requests, trees.rows) or not tensor.is_contiguous():
            raise ValueError(f"{name} is {tuple(tensor.shape)}; it must be a contiguous ({requests}, {trees.rows})")
    _walk_kernel[(requests,)](
        sampled,
        node_tokens,
        cu_num_logits,
        slots,
        is_tree,
        trees.parents,
        trees.num_nodes,
        out_tokens,
        num_sampled,
        path,
        B=trees.budget,
        ROWS=triton.next_power_of_2(trees.rows),
        num_warps=1,
    )
