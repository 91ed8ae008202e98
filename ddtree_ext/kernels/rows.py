"""Begins a step: spreads the batch's trees over its flat rows, and empties what the last step left beyond the batch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ddtree_ext.core.buffers import TreeBuffers, TreeRows


@triton.jit(do_not_specialize=["requests", "all_trees"])  # type: ignore[untyped-decorator]
def _rows_kernel(
    slots_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    is_tree_ptr: tl.tensor,
    num_nodes_ptr: tl.tensor,
    depths_ptr: tl.tensor,
    tree_parents_ptr: tl.tensor,
    tree_ancestors_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    parents_ptr: tl.tensor,
    ancestors_ptr: tl.tensor,
    tree_len_ptr: tl.tensor,
    path_ptr: tl.tensor,
    requests: tl.tensor,
    all_trees: tl.tensor,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    request = tl.program_id(0)
    # Until the walk says otherwise, a request accepts its root's row only.
    place = tl.arange(0, BLOCK)
    tl.store(path_ptr + request * N + place, tl.where(place == 0, 0, -1), mask=place < N)
    if request >= requests:
        tl.store(tree_len_ptr + request, 0)
        tl.store(is_tree_ptr + request, 0)
        return
    if all_trees != 0:
        tl.store(is_tree_ptr + request, 1)
    start = tl.load(query_start_ptr + request)
    query_len = tl.load(query_start_ptr + request + 1) - start
    base = tl.load(seq_lens_ptr + request).to(tl.int64) - query_len
    slot = tl.load(slots_ptr + request)
    is_tree = ((all_trees != 0) | (tl.load(is_tree_ptr + request) != 0)) & (slot >= 0) & (query_len > 0)
    nodes = tl.load(num_nodes_ptr + slot, mask=is_tree, other=0)
    tree_len = tl.where(is_tree, tl.minimum(nodes + 1, query_len), 0)
    tl.store(tree_len_ptr + request, tree_len)

    for first in tl.range(0, query_len, BLOCK):
        row = first + tl.arange(0, BLOCK)
        here = row < query_len
        live = row < tree_len
        # A tree's rows beyond its live nodes are dead: the root's position, no parent, their own bit.
        own = tl.where(row < 64, tl.full([BLOCK], 1, tl.int64) << tl.minimum(row, 63).to(tl.int64), 0)
        depth = tl.load(depths_ptr + slot * N + row, mask=live, other=0)
        parent = tl.load(tree_parents_ptr + slot * N + row, mask=live, other=-2)
        word = tl.load(tree_ancestors_ptr + slot * N + row, mask=live, other=0)
        word = tl.where(live, word, own)
        tl.store(positions_ptr + start + row, base + tl.where(is_tree, depth, row), mask=here)
        tl.store(parents_ptr + start + row, tl.where(is_tree, parent, row - 1), mask=here)
        tl.store(ancestors_ptr + start + row, tl.where(is_tree, word, 0), mask=here)


def expand_rows(
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    is_tree: torch.Tensor,
    path: torch.Tensor,
    trees: TreeBuffers,
    rows: TreeRows,
    all_trees: bool = False,
) -> None:
    """Write this step's rows. A tree is cut to its request's query length; rows beyond its live nodes are dead.

    slots:           [R] int64, request-state slots; below 0: no tree
    query_start_loc: [R + 1] int32, first flat row of every request, and the end
    seq_lens:        [R] int32, tokens of each request including this step's rows; base = seq_len - query length
    is_tree:         [S] int32, S >= R: 0 for requests whose rows are no tree (prefill); with `all_trees` it is written, not read
    path:            [S, N] int32, contiguous: every row becomes the root alone
    Beyond the R requests, is_tree and rows.tree_len become 0. Flat rows that belong to no request are left as they were.
    """
    _rows_kernel[(is_tree.shape[0],)](
        slots,
        query_start_loc,
        seq_lens,
        is_tree,
        trees.num_nodes,
        trees.depths,
        trees.parents,
        trees.ancestors,
        rows.positions,
        rows.parents,
        rows.ancestors,
        rows.tree_len,
        path,
        slots.shape[0],
        int(all_trees),
        N=trees.rows,
        BLOCK=max(64, triton.next_power_of_2(trees.rows)),
        num_warps=2,
    )
