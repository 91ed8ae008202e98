"""The gated delta rule over a tree without a state per row: one solve per V-head, then matrix products with the committed state.

Two launches. `gdn_solve` finds what needs no state; here every block of a state's V rows is read once, and all rows' updates
and outputs follow from products with it. See `gdn_solve` for the mathematics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ddtree_ext.kernels.gdn_solve import matmul, solve_tree
from ddtree_ext.kernels.gdn_stash import GdnScratch, GdnStash
from ddtree_ext.kernels.gdn_tiles import GdnTiles

if TYPE_CHECKING:
    from ddtree_ext.core.buffers import TreeRows


@triton.jit  # type: ignore[untyped-decorator]
def nearest_tf32(x: tl.tensor) -> tl.tensor:
    """x with the 11 digits that matrix units take of a float32; halves go away from 0."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def halved_matmul(x: tl.tensor, y: tl.tensor, HALVED: tl.constexpr) -> tl.tensor:
    """`matmul`; with HALVED the halves are taken here. The compiler takes the same ones, but looks for NaN at each of them."""
    if HALVED:
        wide_x, wide_y = nearest_tf32(x), nearest_tf32(y)
        small = tl.dot(x - wide_x, wide_y, input_precision="tf32")
        small = tl.dot(wide_x, y - wide_y, small, input_precision="tf32")
        result = tl.dot(wide_x, wide_y, small, input_precision="tf32")
    else:
        result = matmul(x, y)
    return result


@triton.jit  # type: ignore[untyped-decorator]
def state_products(
    state_ptr: tl.tensor,
    state_k: tl.tensor,
    v_mask: tl.tensor,
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    live: tl.tensor,
    K: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,
    BC: tl.constexpr,
    STREAM: tl.constexpr,
    HALVED: tl.constexpr,
) -> tl.tensor:
    """q S^T and k S^T [BT, BV]; state_ptr [1, BV] at the block's rows, q_ptr and k_ptr [BT, 1] at the tree's rows."""
    q_s, k_s = tl.zeros([BT, BV], tl.float32), tl.zeros([BT, BV], tl.float32)
    for first in tl.range(0, K, BC):
        in_k = first + tl.arange(0, BC)
        mask = live[:, None] & (in_k < K)[None, :]
        inside = v_mask[None, :] & (in_k < K)[:, None]
        policy: tl.constexpr = "evict_first" if STREAM else ""
        state_at = state_ptr + in_k[:, None] * state_k
        state = tl.load(state_at, mask=inside, other=0.0, eviction_policy=policy).to(tl.float32)
        q_s += halved_matmul(tl.load(q_ptr + in_k[None, :], mask=mask, other=0.0), state, HALVED)
        k_s += halved_matmul(tl.load(k_ptr + in_k[None, :], mask=mask, other=0.0), state, HALVED)
    return q_s, k_s


@triton.jit  # type: ignore[untyped-decorator]
def beside_the_state(
    v_at: tl.tensor,
    mask: tl.tensor,
    gate_at: tl.tensor,
    live: tl.tensor,
    square: tl.tensor,
    solve_ptr: tl.tensor,
    mix_ptr: tl.tensor,
    beta_ptr: tl.tensor,
    fade_ptr: tl.tensor,
) -> tl.tensor:
    """What the products with the state are joined with: fade and beta [BT, 1], v [BT, BV], the solve and the mix [BT, BT]."""
    fade = tl.load(fade_ptr + gate_at, mask=live, other=0.0)[:, None]
    beta = tl.load(beta_ptr + gate_at, mask=live, other=0.0)[:, None]
    v = tl.load(v_at, mask=mask, other=0.0).to(tl.float32)
    return fade, beta, v, tl.load(solve_ptr + square), tl.load(mix_ptr + square)


@triton.jit  # type: ignore[untyped-decorator]
def apply_tree_kernel(
    v_ptr: tl.tensor,
    v_row: tl.tensor,
    state_ptr: tl.tensor,
    state_slot: tl.tensor,
    state_head: tl.tensor,
    state_v: tl.tensor,
    state_k: tl.tensor,
    state_indices_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    tree_len_ptr: tl.tensor,
    q_ptr: tl.tensor,
    solve_ptr: tl.tensor,
    mix_ptr: tl.tensor,
    beta_ptr: tl.tensor,
    fade_ptr: tl.tensor,
    k_ptr: tl.tensor,
    u_ptr: tl.tensor,
    out_ptr: tl.tensor,
    out_row: tl.tensor,
    N: tl.constexpr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,
    BC: tl.constexpr,
    EARLY: tl.constexpr,
    STREAM: tl.constexpr,
    HALVED: tl.constexpr,
) -> None:
    """One program: one V-head x BV rows of the [V, K] state of one request, all rows of its tree. Grid (R, HV, V blocks)."""
    request, head = tl.program_id(0), tl.program_id(1)
    tree_len = tl.load(tree_len_ptr + request)
    slot = tl.load(state_indices_ptr + request).to(tl.int64)
    if (slot <= 0) | (tree_len <= 0):
        return
    row, in_v = tl.arange(0, BT), tl.program_id(2) * BV + tl.arange(0, BV)
    live, v_mask = row < tree_len, in_v < V
    token = tl.load(query_start_ptr + request).to(tl.int64) + row
    kept = request.to(tl.int64) * N + row
    k_at = kept[:, None] * (HK * K) + (head // (HV // HK)) * K
    state_at = state_ptr + slot * state_slot + head * state_head + (in_v * state_v)[None, :]
    mask = live[:, None] & v_mask[None, :]
    in_head = head * V + in_v[None, :]
    v_at = v_ptr + token[:, None] * v_row + in_head
    square = (request.to(tl.int64) * HV + head) * (BT * BT) + row[:, None] * BT + row[None, :]
    gate_at = kept * HV + head
    if EARLY:  # their loads run beside those of the state, at the price of the registers
        fade, beta, v, solve, mix = beside_the_state(
            v_at, mask, gate_at, live, square, solve_ptr, mix_ptr, beta_ptr, fade_ptr
        )
    q_s, k_s = state_products(
        state_at, state_k, v_mask, q_ptr + k_at, k_ptr + k_at, live, K, BT, BV, BC, STREAM, HALVED
    )
    if not EARLY:
        fade, beta, v, solve, mix = beside_the_state(
            v_at, mask, gate_at, live, square, solve_ptr, mix_ptr, beta_ptr, fade_ptr
        )
    u = halved_matmul(solve, beta * (v - fade * k_s), HALVED)
    tl.store(u_ptr + kept[:, None] * (HV * V) + in_head, u, mask=mask)
    out = fade * q_s + halved_matmul(mix, u, HALVED)
    tl.store(out_ptr + token[:, None] * out_row + in_head, out.to(out_ptr.dtype.element_ty), mask=mask)


def apply_tree(
    v: torch.Tensor,
    ssm_state: torch.Tensor,
    state_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    rows: TreeRows,
    scratch: GdnScratch,
    out: torch.Tensor,
    stash: GdnStash,
    tiles: GdnTiles | None = None,
) -> None:
    """The second half: out and the stash's u, from what `solve_tree` left. Arguments as for `delta_tree`."""
    _, v_heads, v_dim = v.shape
    _, tree_rows, k_heads, k_dim = stash.k.shape
    tiles = tiles or GdnTiles.of(v.device, stash.shape, tree_rows)
    apply_tree_kernel[(state_indices.shape[0], v_heads, triton.cdiv(v_dim, tiles.apply_v))](
        v,
        v.stride(0),
        ssm_state,
        *ssm_state.stride(),
        state_indices,
        query_start_loc,
        rows.tree_len,
        scratch.q,
        scratch.solve,
        scratch.mix,
        scratch.beta,
        scratch.fade,
        stash.k,
        stash.u,
        out,
        out.stride(0),
        N=tree_rows,
        HK=k_heads,
        HV=v_heads,
        K=k_dim,
        V=v_dim,
        BT=scratch.solve.shape[-1],
        BV=tiles.apply_v,
        BC=tiles.apply_k,
        EARLY=tiles.apply_early,
        STREAM=tiles.apply_stream,
        HALVED=tiles.apply_halved,
        num_warps=tiles.apply_warps,
        num_stages=tiles.apply_stages,
    )


def delta_tree(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    ssm_state: torch.Tensor,
    state_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    rows: TreeRows,
    scratch: GdnScratch,
    out: torch.Tensor,
    stash: GdnStash,
    tiles: GdnTiles | None = None,
) -> None:
    """Gated delta rule along every row's root path; the committed state is read once, not written.

    q, k [T, HK, K], v [T, HV, V]: convolution outputs, only the row stride is free; a, b [T, HV]; A_log, dt_bias [HV];
    ssm_state [slots, HV, V, K] with any strides; state_indices [R] (a slot <= 0 is a null block or padding: skipped);
    query_start_loc [R + 1]; out [T, HV, V]; scratch and stash for at least R requests.
    For each row < tree_len of a tree, V-head h with K-head h // (HV / HK):

        g = -exp(A_log) softplus(a + dt_bias), S = e^g S_parent, u = sigmoid(b) (v - S k), S += u k^T, o = S q

    with q and k L2-normalised (eps 1e-6), q scaled by K^-0.5, softplus linear above 20. out gets o; the stash k, u and
    e^g. Other rows are left alone. At most 64 rows a tree; float32 throughout. `tiles` None: the device's.
    """
    inner = ((q, k.shape[2]), (k, k.shape[2]), (v, v.shape[2]), (out, v.shape[2]))
    if any(t.stride()[1:] != (d, 1) for t, d in inner) or a.stride(1) != 1 or b.stride(1) != 1:
        raise ValueError("delta_tree: only the row stride of q, k, v, a, b and out is free")
    solve_tree(q, k, a, b, A_log, dt_bias, state_indices, query_start_loc, rows, scratch, stash, tiles)
    apply_tree(v, ssm_state, state_indices, query_start_loc, rows, scratch, out, stash, tiles)
