"""`gdn_solve` for trees of 16 rows at most, all V-heads of a K-head in one program: their keys' products are computed once,
and a batch of squares keeps the warps of one program as busy as several programs would.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ddtree_ext.kernels.gdn_solve import FIXED, gates, inverses, products_at_once


@triton.jit  # type: ignore[untyped-decorator]
def solve_group_kernel(
    q_ptr: tl.tensor,
    q_row: tl.tensor,
    k_ptr: tl.tensor,
    k_row: tl.tensor,
    a_ptr: tl.tensor,
    a_row: tl.tensor,
    b_ptr: tl.tensor,
    b_row: tl.tensor,
    a_log_ptr: tl.tensor,
    dt_bias_ptr: tl.tensor,
    state_indices_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    ancestors_ptr: tl.tensor,
    tree_len_ptr: tl.tensor,
    scratch_q_ptr: tl.tensor,
    solve_ptr: tl.tensor,
    mix_ptr: tl.tensor,
    beta_ptr: tl.tensor,
    fade_ptr: tl.tensor,
    stash_k_ptr: tl.tensor,
    decay_ptr: tl.tensor,
    scale: tl.tensor,
    N: tl.constexpr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    BC: tl.constexpr,
    BG: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """One program: the HV / HK <= BG V-heads of one K-head in one request's tree. Grid (R, HK). All of K at a time: BC >= K."""
    request, k_head = tl.program_id(0), tl.program_id(1)
    tree_len = tl.load(tree_len_ptr + request)
    start = tl.load(query_start_ptr + request).to(tl.int64)
    if (tl.load(state_indices_ptr + request) <= 0) | (tree_len <= 0):
        return
    row, member, in_k = tl.arange(0, 16), tl.arange(0, BG), tl.arange(0, BC)[None, :]
    live, here = row < tree_len, member < HV // HK
    token, kept = start + row, request.to(tl.int64) * N + row
    inside = live[:, None] & (in_k < K)
    in_head = k_head * K + in_k
    q = tl.load(q_ptr + token[:, None] * q_row + in_head, mask=inside, other=0.0)
    k = tl.load(k_ptr + token[:, None] * k_row + in_head, mask=inside, other=0.0)

    head = tl.minimum(k_head * (HV // HK) + member, HV - 1)[:, None]  # of all, members beyond the group are not stored
    mine = here[:, None] & live[None, :]
    g, beta = gates(token[None, :], mine, head, a_ptr, a_row, b_ptr, b_row, a_log_ptr, dt_bias_ptr)
    word = tl.load(ancestors_ptr + token, mask=live, other=0)[:, None]
    sees = (((word >> row.to(tl.int64)[None, :]) & 1) != 0)[None]
    fixed = (tl.maximum(g, -128.0) * FIXED).to(tl.int64)  # as in solve_tree_kernel
    total = tl.sum(tl.where(sees, fixed[:, None, :], 0), 2)
    gate_at = kept[None, :] * HV + head
    tl.store(beta_ptr + gate_at, beta, mask=mine)
    tl.store(decay_ptr + gate_at, tl.exp(g), mask=mine)
    tl.store(fade_ptr + gate_at, tl.exp(total.to(tl.float32) * (1 / FIXED)), mask=mine)

    kept_at = kept[:, None] * (HK * K) + in_head
    q_k, k_k = products_at_once(q, k, scratch_q_ptr + kept_at, stash_k_ptr + kept_at, inside, True, True, scale, UPCAST)
    gates_between = (total[:, :, None] - total[:, None, :]).to(tl.float32) * (1 / FIXED)
    between = tl.exp(tl.where(sees, gates_between, float("-inf")))
    below = (row[:, None] != row[None, :])[None]
    a = tl.where(below, beta[:, :, None] * between * k_k[None], 0.0)
    corner = (request.to(tl.int64) * HV + head)[:, :, None] * 256
    square = corner + (row[:, None] * 16 + row[None, :])[None]
    all_rows = here[:, None, None] & (row < 16)[None, :, None]
    tl.store(mix_ptr + square, between * q_k[None], mask=all_rows)
    tl.store(solve_ptr + square, a, mask=all_rows)
    tl.debug_barrier()  # every thread sees it from here on; read back, for its way here would be computed once for each layout
    inverse = inverses(tl.load(solve_ptr + square, mask=all_rows, other=0.0))
    tl.debug_barrier()  # all of it is read before any is overwritten
    tl.store(solve_ptr + square, inverse, mask=all_rows)
