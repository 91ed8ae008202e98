"""Grows every request's draft tree on the device: one program per request, no host round trip, no heap.

The candidates of one parent fall with rank, so a parent's best free candidate is its next rank. The program keeps that
candidate's score for every row in registers and takes the largest, until the budget is full or nothing is left.
core/tree.py states the rule.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ddtree_ext.core.buffers import TreeBuffers


@triton.jit  # type: ignore[untyped-decorator]
def _best_child(
    logprobs_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    depth: tl.tensor,
    rank: tl.tensor,
    score: tl.tensor,
    WIDTH: tl.constexpr,
    K: tl.constexpr,
) -> tl.tensor:
    """Below a row of this depth and score, the first usable rank >= `rank` and its score; (K, -inf): none."""
    rank = tl.where(depth < WIDTH, rank, K)
    position = depth * K
    searching = rank < K
    while searching:
        usable = (tl.load(ids_ptr + position + rank) >= 0) & (tl.load(logprobs_ptr + position + rank) > float("-inf"))
        rank = tl.where(usable, rank, rank + 1)
        searching = (usable == 0) & (rank < K)
    return rank, score + tl.load(logprobs_ptr + position + rank, mask=rank < K, other=float("-inf"))


@triton.jit  # type: ignore[untyped-decorator]
def _build_kernel(
    logprobs_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    budgets_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    parents_ptr: tl.tensor,
    depths_ptr: tl.tensor,
    ancestors_ptr: tl.tensor,
    num_nodes_ptr: tl.tensor,
    WIDTH: tl.constexpr,
    K: tl.constexpr,
    B: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    request = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + request)
    if slot < 0:
        return
    budget = tl.minimum(tl.load(budgets_ptr + request), B)
    logprobs = logprobs_ptr + request * WIDTH * K
    ids = ids_ptr + request * WIDTH * K

    row = tl.arange(0, ROWS)
    own = tl.full([ROWS], 1, tl.int64) << row.to(tl.int64)
    tokens = tl.zeros([ROWS], tl.int64)
    parents = tl.where(row == 0, -1, -2)
    depths = tl.zeros([ROWS], tl.int32)
    ancestors = own
    scores = tl.zeros([ROWS], tl.float32)
    # Of each row's best free child: its rank and score (-inf: none left, or no such row yet).
    rank, child = _best_child(logprobs, ids, 0, 0, 0.0, WIDTH, K)
    ranks = tl.where(row == 0, rank, 0)
    best = tl.where(row == 0, child, float("-inf"))
    nodes = 0
    spine = 0  # the spine's last node while the spine grows, -1 after
    going = (budget > 0) & (tl.max(best, 0) > float("-inf"))
    while going:
        open_rows = (spine < 0) | (row == spine)
        score = tl.max(tl.where(open_rows, best, float("-inf")), 0)
        # Of equal scores the smaller depth, then the smaller row.
        tied = open_rows & (best == score)
        parent = tl.min(tl.where(tied, depths * ROWS + row, 2147483647), 0) % ROWS
        is_parent = row == parent
        depth = tl.sum(tl.where(is_parent, depths, 0), 0)
        rank = tl.sum(tl.where(is_parent, ranks, 0), 0)
        word = tl.sum(tl.where(is_parent, ancestors, 0), 0)
        parent_score = tl.sum(tl.where(is_parent, scores, 0.0), 0)

        nodes += 1
        is_node = row == nodes
        tokens = tl.where(is_node, tl.load(ids + depth * K + rank), tokens)
        parents = tl.where(is_node, parent, parents)
        depths = tl.where(is_node, depth + 1, depths)
        ancestors = tl.where(is_node, own | word, ancestors)
        scores = tl.where(is_node, score, scores)

        # The parent's next child, and the new node's first.
        rank, child = _best_child(logprobs, ids, depth, rank + 1, parent_score, WIDTH, K)
        ranks = tl.where(is_parent, rank, ranks)
        best = tl.where(is_parent, child, best)
        rank, child = _best_child(logprobs, ids, depth + 1, 0, score, WIDTH, K)
        ranks = tl.where(is_node, rank, ranks)
        best = tl.where(is_node, child, best)

        spine = tl.where((spine >= 0) & (child > float("-inf")), nodes, -1)
        going = (nodes < budget) & (tl.max(best, 0) > float("-inf"))

    live = row <= B
    tl.store(parents_ptr + slot * (B + 1) + row, parents, mask=live)
    tl.store(depths_ptr + slot * (B + 1) + row, depths, mask=live)
    tl.store(ancestors_ptr + slot * (B + 1) + row, ancestors, mask=live)
    tl.store(tokens_ptr + slot * B + row - 1, tokens, mask=live & (row > 0))
    tl.store(num_nodes_ptr + slot, nodes)


def build_trees(
    logprobs: torch.Tensor, ids: torch.Tensor, budgets: torch.Tensor, slots: torch.Tensor, trees: TreeBuffers
) -> None:
    """Grow one tree per request into `trees`, at the request's slot; the whole slot is overwritten.

    logprobs: [R, W, K] float32, the drafter's log-probabilities per position, descending along K
    ids:      [R, W, K] int64, their token ids, distinct within a position; below 0: padding, never enters a tree
    budgets:  [R] int32, nodes per tree; 0: no tree; more than trees.budget counts as trees.budget
    slots:    [R] int64, request-state slots, all different; -1: leave this request out
    Raises ValueError on shapes or types that do not fit.
    """
    if logprobs.shape != ids.shape or logprobs.dim() != 3:
        shapes = f"{tuple(logprobs.shape)} and {tuple(ids.shape)}"
        raise ValueError(f"logprobs and ids are {shapes}; both must be [requests, width, ranks]")
    if logprobs.dtype != torch.float32 or ids.dtype != torch.int64:
        raise ValueError(f"logprobs must be float32 and ids int64, not {logprobs.dtype} and {ids.dtype}")
    requests, width, ranks = logprobs.shape
    if not (logprobs.is_contiguous() and ids.is_contiguous()):
        raise ValueError("logprobs and ids must be contiguous")
    _build_kernel[(requests,)](
        logprobs,
        ids,
        budgets,
        slots,
        trees.tokens,
        trees.parents,
        trees.depths,
        trees.ancestors,
        trees.num_nodes,
        WIDTH=width,
        K=ranks,
        B=trees.budget,
        ROWS=triton.next_power_of_2(trees.rows),
        num_warps=1,
    )
