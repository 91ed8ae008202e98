"""The part of the gated delta rule over a tree that needs no state: norms, gates, and one triangular solve per V-head.

With G_i the sum of the log-gates along row i's root path, S_0 the committed state and j running over ancestors, the rule
S = e^g S_parent, u = beta (v - S k), S += u k^T, o = S q unrolls to

    u_i = beta_i (v_i - e^{G_i} S_0 k_i - sum_{j < i} e^{G_i - G_j} (k_i . k_j) u_j)
    o_i = e^{G_i} S_0 q_i + sum_{j <= i} e^{G_i - G_j} (q_i . k_j) u_j

so that (I + A) U = beta (V - e^G K S_0^T) with A strictly lower triangular: parents stand before their children.

The inverse of I + A is built from blocks of twice the size, level by level, where [[L, 0], [B, R]] has the inverse
[[L', 0], [-R' B L', R']]. It has the accuracy of substitution (every block is itself the inverse of a part of the tree, and
bounded), on matrix units. A series in powers of A needs fewer products and is useless: with keys that resemble each other its
terms are binomial coefficients, which cancel.

G_i - G_j is a difference of sums in fixed point, which are exact: in float32 a strong gate high up in the tree would cost the
gates below it their last digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ddtree_ext.kernels.gdn_stash import GdnScratch, GdnStash
from ddtree_ext.kernels.gdn_tiles import GdnTiles

if TYPE_CHECKING:
    from ddtree_ext.core.buffers import TreeRows

FIXED = tl.constexpr(2.0**48)
"""One, in the fixed point of log-gates."""


@triton.jit  # type: ignore[untyped-decorator]
def matmul(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """Float32 operands to float32's accuracy on matrix units: three products of their halves."""
    return tl.dot(x, y, input_precision="tf32x3")


@triton.jit  # type: ignore[untyped-decorator]
def merged(inverse: tl.tensor, a: tl.tensor, S: tl.constexpr) -> tl.tensor:
    """Inverses of I + a's diagonal blocks of 2S rows, from those of its blocks of S rows; both [tiles, 16, 16]."""
    row = tl.arange(0, 16)
    i, j = row[:, None], row[None, :]
    between = ((i // (2 * S) == j // (2 * S)) & (i // S != j // S))[None]
    return inverse - matmul(inverse, matmul(tl.where(between, a, 0.0), inverse))


@triton.jit  # type: ignore[untyped-decorator]
def inverses(a: tl.tensor) -> tl.tensor:
    """Of I + every tile; [tiles, 16, 16]."""
    row = tl.arange(0, 16)
    i, j = row[:, None], row[None, :]
    inverse = tl.where((i == j)[None], 1.0, 0.0) - tl.where((i // 2 == j // 2)[None], a, 0.0)
    inverse = merged(inverse, a, 2)
    inverse = merged(inverse, a, 4)
    return merged(inverse, a, 8)


@triton.jit  # type: ignore[untyped-decorator]
def invert_tiles(square: tl.tensor, BT: tl.constexpr) -> None:
    """Replaces every tile of 16 x 16 on the diagonal of a [BT, BT] by the inverse of I + the tile."""
    tile, row = tl.arange(0, BT // 16), tl.arange(0, 16)
    at = square + (tile * (16 * BT + 16))[:, None, None] + (row * BT)[None, :, None] + row[None, None, :]
    inverse = inverses(tl.load(at))
    tl.debug_barrier()  # all of it is read before any is overwritten
    tl.store(at, inverse)


@triton.jit  # type: ignore[untyped-decorator]
def merge_blocks(square: tl.tensor, S: tl.constexpr, BT: tl.constexpr) -> None:
    """Two inverses of S rows and what stands between them become one of 2S rows, along the diagonal of [BT, BT]."""
    pair, row = tl.arange(0, BT // (2 * S)), tl.arange(0, S)
    left = square + (pair * (2 * S * (BT + 1)))[:, None, None] + (row * BT)[None, :, None] + row[None, None, :]
    below, right = left + S * BT, left + S * (BT + 1)
    inverse = -matmul(tl.load(right), matmul(tl.load(below), tl.load(left)))
    tl.debug_barrier()  # all of it is read before any is overwritten
    tl.store(below, inverse)


@triton.jit  # type: ignore[untyped-decorator]
def gates(
    token: tl.tensor,
    live: tl.tensor,
    head: tl.tensor,
    a_ptr: tl.tensor,
    a_row: tl.tensor,
    b_ptr: tl.tensor,
    b_row: tl.tensor,
    a_log_ptr: tl.tensor,
    dt_bias_ptr: tl.tensor,
) -> tl.tensor:
    """Log-gates g and beta of the rows `token` for one V-head; 0 where not live."""
    a = tl.load(a_ptr + token * a_row + head, mask=live, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + token * b_row + head, mask=live, other=0.0).to(tl.float32)
    dt = a + tl.load(dt_bias_ptr + head).to(tl.float32)
    softplus = tl.where(dt <= 20.0, tl.log(1 + tl.exp(dt)), dt)
    g = -tl.exp(tl.load(a_log_ptr + head).to(tl.float32)) * softplus
    return tl.where(live, g, 0.0), tl.where(live, tl.sigmoid(b), 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def products(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    live: tl.tensor,
    q_out_ptr: tl.tensor,
    k_out_ptr: tl.tensor,
    stores: tl.tensor,
    scale: tl.tensor,
    K: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    UPCAST: tl.constexpr,
) -> tl.tensor:
    """q k^T and k k^T [BT, BT] of the normalised rows; with `stores`, stores those too. Pointers [BT, 1] at the rows."""
    q_k, k_k = tl.zeros([BT, BT], tl.float32), tl.zeros([BT, BT], tl.float32)
    q_square, k_square = tl.zeros([BT], tl.float32), tl.zeros([BT], tl.float32)
    for first in tl.range(0, K, BC):
        in_k = first + tl.arange(0, BC)[None, :]
        mask = live[:, None] & (in_k < K)
        q, k = tl.load(q_ptr + in_k, mask=mask, other=0.0), tl.load(k_ptr + in_k, mask=mask, other=0.0)
        wide_q, wide_k = q.to(tl.float32), k.to(tl.float32)
        q_square += tl.sum(wide_q * wide_q, 1)
        k_square += tl.sum(wide_k * wide_k, 1)
        if UPCAST:
            q, k = wide_q, wide_k
        # Before the norms are applied, 16-bit inputs multiply without a rounding.
        q_k += matmul(q, tl.trans(k))
        k_k += matmul(k, tl.trans(k))
    q_norm, k_norm = tl.rsqrt(q_square + 1e-6) * scale, tl.rsqrt(k_square + 1e-6)
    if stores:
        for first in tl.range(0, K, BC):
            in_k = first + tl.arange(0, BC)[None, :]
            mask = live[:, None] & (in_k < K)
            q = tl.load(q_ptr + in_k, mask=mask, other=0.0).to(tl.float32)
            k = tl.load(k_ptr + in_k, mask=mask, other=0.0).to(tl.float32)
            tl.store(q_out_ptr + in_k, q * q_norm[:, None], mask=mask)
            tl.store(k_out_ptr + in_k, k * k_norm[:, None], mask=mask)
    return q_k * q_norm[:, None] * k_norm[None, :], k_k * k_norm[:, None] * k_norm[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def products_at_once(
    q: tl.tensor,
    k: tl.tensor,
    q_out_at: tl.tensor,
    k_out_at: tl.tensor,
    mask: tl.tensor,
    q_stores: tl.tensor,
    k_stores: tl.tensor,
    scale: tl.tensor,
    UPCAST: tl.constexpr,
) -> tl.tensor:
    """`products` of rows that were loaded whole, q and k [BT, BC]: nothing is loaded again to be stored."""
    wide_q, wide_k = q.to(tl.float32), k.to(tl.float32)
    q_norm = tl.rsqrt(tl.sum(wide_q * wide_q, 1) + 1e-6) * scale
    k_norm = tl.rsqrt(tl.sum(wide_k * wide_k, 1) + 1e-6)
    if UPCAST:
        q, k = wide_q, wide_k
    q_k = tl.dot(q, tl.trans(k), input_precision="tf32x3")
    k_k = tl.dot(k, tl.trans(k), input_precision="tf32x3")
    if q_stores:
        tl.store(q_out_at, wide_q * q_norm[:, None], mask=mask)
    if k_stores:
        tl.store(k_out_at, wide_k * k_norm[:, None], mask=mask)
    return q_k * q_norm[:, None] * k_norm[None, :], k_k * k_norm[:, None] * k_norm[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def solve_tree_kernel(
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
    BT: tl.constexpr,
    BC: tl.constexpr,
    UPCAST: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """One program: one V-head of one request's tree. Grid (R, HV). The first V-head of a K-head stores its q and k."""
    request, head = tl.program_id(0), tl.program_id(1)
    tree_len = tl.load(tree_len_ptr + request)
    if (tl.load(state_indices_ptr + request) <= 0) | (tree_len <= 0):
        return
    row = tl.arange(0, BT)
    live = row < tree_len
    token = tl.load(query_start_ptr + request).to(tl.int64) + row
    kept = request.to(tl.int64) * N + row

    k_head = head // (HV // HK)
    in_head = k_head * K
    kept_at = kept[:, None] * (HK * K) + in_head
    q_at, k_at = q_ptr + token[:, None] * q_row + in_head, k_ptr + token[:, None] * k_row + in_head
    q_out_at, k_out_at = scratch_q_ptr + kept_at, stash_k_ptr + kept_at
    if EARLY:  # before the stores, which no load may pass
        in_k = tl.arange(0, BC)[None, :]
        inside = live[:, None] & (in_k < K)
        q, k = tl.load(q_at + in_k, mask=inside, other=0.0), tl.load(k_at + in_k, mask=inside, other=0.0)

    g, beta = gates(token, live, head, a_ptr, a_row, b_ptr, b_row, a_log_ptr, dt_bias_ptr)
    word = tl.load(ancestors_ptr + token, mask=live, other=0)[:, None]
    sees = ((word >> row.to(tl.int64)[None, :]) & 1) != 0
    # e^-128 is 0 in float32, and so is every product with it; 64 times 128 * 2^48 fits 62 bits.
    fixed = (tl.maximum(g, -128.0) * FIXED).to(tl.int64)
    total = tl.sum(tl.where(sees, fixed[None, :], 0), 1)
    gate_at = kept * HV + head
    tl.store(beta_ptr + gate_at, beta, mask=live)
    tl.store(decay_ptr + gate_at, tl.exp(g), mask=live)
    tl.store(fade_ptr + gate_at, tl.exp(total.to(tl.float32) * (1 / FIXED)), mask=live)

    first = head % (HV // HK) == 0
    if EARLY:
        last = head % (HV // HK) == HV // HK - 1  # another program than the first, where there is one
        q_k, k_k = products_at_once(q, k, q_out_at + in_k, k_out_at + in_k, inside, first, last, scale, UPCAST)
    else:
        q_k, k_k = products(q_at, k_at, live, q_out_at, k_out_at, first, scale, K, BT, BC, UPCAST)
    # e^(G_i - G_j), and 0 where j is neither an ancestor nor i itself.
    gates_between = (total[:, None] - total[None, :]).to(tl.float32) * (1 / FIXED)
    between = tl.exp(tl.where(sees, gates_between, float("-inf")))
    corner = (request.to(tl.int64) * HV + head) * (BT * BT)
    square = row[:, None] * BT + row[None, :]
    tl.store(mix_ptr + corner + square, between * q_k)
    a = tl.where(row[:, None] != row[None, :], beta[:, None] * between * k_k, 0.0)
    if EARLY and BT == 16:
        tl.store(solve_ptr + corner + square, tl.reshape(inverses(tl.reshape(a, (1, 16, 16))), (16, 16)))
    else:
        tl.store(solve_ptr + corner + square, a)
        tl.debug_barrier()  # every thread of this program sees it from here on
        invert_tiles(solve_ptr + corner, BT)
        if BT >= 32:
            tl.debug_barrier()
            merge_blocks(solve_ptr + corner, 16, BT)
        if BT >= 64:
            tl.debug_barrier()
            merge_blocks(solve_ptr + corner, 32, BT)


def solve_tree(
    q: torch.Tensor,
    k: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    rows: TreeRows,
    scratch: GdnScratch,
    stash: GdnStash,
    tiles: GdnTiles | None = None,
) -> None:
    """The first half of `gdn_delta.delta_tree`, with its arguments: fills the scratch, and the stash's k and decay."""
    _, k_heads, k_dim = k.shape
    v_heads = a.shape[1]
    tiles = tiles or GdnTiles.of(q.device, stash.shape, stash.k.shape[1])
    given = (
        q,
        q.stride(0),
        k,
        k.stride(0),
        a,
        a.stride(0),
        b,
        b.stride(0),
        A_log,
        dt_bias,
        state_indices,
        query_start_loc,
        rows.ancestors,
        rows.tree_len,
        scratch.q,
        scratch.solve,
        scratch.mix,
        scratch.beta,
        scratch.fade,
        stash.k,
        stash.decay,
        k_dim**-0.5,
    )
    sizes = {"N": stash.k.shape[1], "HK": k_heads, "HV": v_heads, "K": k_dim, "BC": tiles.solve_k}
    upcast = q.device.type == "cpu"  # Triton's interpreter multiplies the bit patterns of bfloat16
    side, whole = scratch.solve.shape[-1], tiles.solve_k >= k_dim
    if tiles.solve_group and whole and side == 16:
        from ddtree_ext.kernels.gdn_solve_group import solve_group_kernel  # which is made of this module's parts

        group = triton.next_power_of_2(v_heads // k_heads)
        solve_group_kernel[(state_indices.shape[0], k_heads)](
            *given, **sizes, BG=group, UPCAST=upcast, num_warps=tiles.solve_warps
        )
        return
    early = bool(tiles.solve_early) and whole
    solve_tree_kernel[(state_indices.shape[0], v_heads)](
        *given, **sizes, BT=side, UPCAST=upcast, EARLY=early, num_warps=tiles.solve_warps
    )
