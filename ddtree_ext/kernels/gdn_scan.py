"""The gated delta rule over a tree, as a scan: every row's state grows from its parent's.

Arithmetic and its order are those of vLLM's `fused_sigmoid_gating_delta_rule_update` (decay, dot, update, output; in
float32), so that a tree in the shape of a chain gives what the chain gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from ddtree_ext.kernels.gdn_stash import GdnStash

if TYPE_CHECKING:
    from ddtree_ext.core.buffers import TreeRows


@triton.jit  # type: ignore[untyped-decorator]
def add_outer(state: Any, u: Any, k: Any) -> Any:
    """`state + u k^T`, with one rounding wherever it is compiled: a replay then gives the same bits as the scan."""
    return tl.fma(u[:, :, None], k[:, None, :], state)


@triton.jit  # type: ignore[untyped-decorator]
def scan_tree_kernel(
    q_ptr: Any,
    q_row: Any,
    k_ptr: Any,
    k_row: Any,
    v_ptr: Any,
    v_row: Any,
    a_ptr: Any,
    a_row: Any,
    b_ptr: Any,
    b_row: Any,
    a_log_ptr: Any,
    dt_bias_ptr: Any,
    state_ptr: Any,
    state_slot: Any,
    state_head: Any,
    state_v: Any,
    state_k: Any,
    state_indices_ptr: Any,
    query_start_ptr: Any,
    parents_ptr: Any,
    tree_len_ptr: Any,
    scratch_ptr: Any,
    out_ptr: Any,
    out_row: Any,
    stash_k_ptr: Any,
    stash_u_ptr: Any,
    stash_g_ptr: Any,
    scale: Any,
    N: tl.constexpr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BN: tl.constexpr,
    BH: tl.constexpr,
    BV: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """One program: BH V-heads x BV rows of the [V, K] state of one request. Grid (R, head blocks, V blocks)."""
    request = tl.program_id(0)
    tree_len = tl.load(tree_len_ptr + request)
    slot = tl.load(state_indices_ptr + request).to(tl.int64)
    if (slot <= 0) | (tree_len <= 0):
        return
    start = tl.load(query_start_ptr + request).to(tl.int64)
    head = tl.program_id(1) * BH + tl.arange(0, BH)
    k_head = head // (HV // HK)
    in_v = tl.program_id(2) * BV + tl.arange(0, BV)
    in_k = tl.arange(0, BK)
    head_mask = head < HV
    k_mask = head_mask[:, None] & (in_k < K)[None, :]
    v_mask = head_mask[:, None] & (in_v < V)[None, :]
    mask = v_mask[:, :, None] & (in_k < K)[None, None, :]
    k_at = k_head[:, None] * K + in_k[None, :]
    v_at = head[:, None] * V + in_v[None, :]
    scratch_at = scratch_ptr + request.to(tl.int64) * (N * HV * V * K) + v_at[:, :, None] * K + in_k[None, None, :]
    # A K-head is shared by HV / HK V-heads and by all V blocks: the first of each keeps its key.
    keeps_g = head < tl.where(tl.program_id(2) == 0, HV, 0)
    keeps_k = k_mask & (keeps_g & (head % (HV // HK) == 0))[:, None]

    neg_a = -tl.exp(tl.load(a_log_ptr + head, mask=head_mask, other=0.0).to(tl.float32))
    dt_bias = tl.load(dt_bias_ptr + head, mask=head_mask, other=0.0).to(tl.float32)
    state_at = slot * state_slot + head[:, None, None] * state_head + in_v[None, :, None] * state_v
    state = tl.load(state_ptr + state_at + in_k[None, None, :] * state_k, mask=mask, other=0.0).to(tl.float32)
    node = tl.arange(0, BN)
    parents = tl.load(parents_ptr + start + node, mask=node < tree_len, other=-2)

    for i in tl.range(0, tree_len):
        parent = tl.load(parents_ptr + start + i)
        if parent != i - 1:  # else the parent is the row before (of the root: the committed state), still in registers
            tl.debug_barrier()
            state = tl.load(scratch_at + parent.to(tl.int64) * (HV * V * K), mask=mask, other=0.0)
        row = start + i
        q = tl.load(q_ptr + row * q_row + k_at, mask=k_mask, other=0.0).to(tl.float32)
        k = tl.load(k_ptr + row * k_row + k_at, mask=k_mask, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + row * v_row + v_at, mask=v_mask, other=0.0).to(tl.float32)
        dt = tl.load(a_ptr + row * a_row + head, mask=head_mask, other=0.0).to(tl.float32) + dt_bias
        g = neg_a * tl.where(dt <= 20.0, tl.log(1 + tl.exp(dt)), dt)
        beta = tl.sigmoid(tl.load(b_ptr + row * b_row + head, mask=head_mask, other=0.0).to(tl.float32))
        q = q * tl.rsqrt(tl.sum(q * q, 1) + 1e-6)[:, None] * scale
        k = k * tl.rsqrt(tl.sum(k * k, 1) + 1e-6)[:, None]
        state = state * tl.exp(g)[:, None, None]
        u = (v - tl.sum(state * k[:, None, :], 2)) * beta[:, None]
        state = add_outer(state, u, k)
        o = tl.sum(state * q[:, None, :], 2)
        tl.store(out_ptr + row * out_row + v_at, o.to(out_ptr.dtype.element_ty), mask=v_mask)
        kept = request.to(tl.int64) * N + i
        tl.store(stash_k_ptr + kept * (HK * K) + k_at, k, mask=keeps_k)
        tl.store(stash_u_ptr + kept * (HV * V) + v_at, u, mask=v_mask)
        tl.store(stash_g_ptr + kept * HV + head, g, mask=keeps_g)
        if tl.sum(((parents == i) & (node > i + 1)).to(tl.int32), 0) > 0:  # a child that is not the next row reads it
            tl.store(scratch_at + i * (HV * V * K), state, mask=mask)


def scan_tree(
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
    scratch: torch.Tensor,
    out: torch.Tensor,
    stash: GdnStash,
) -> None:
    """Gated delta rule along every row's root path; the committed state is read, not written.

    q, k [T, HK, K], v [T, HV, V]: convolution outputs, only the row stride is free; a, b [T, HV]; A_log, dt_bias [HV];
    ssm_state [slots, HV, V, K] with any strides; state_indices [R] (a slot <= 0 is skipped); query_start_loc [R + 1];
    scratch [>= R, N, HV, V, K] float32, contiguous: states of the rows that have a child other than the next row;
    out [T, HV, V]. For each row < tree_len of a tree, V-head h with K-head h // (HV / HK):

        g = -exp(A_log) softplus(a + dt_bias), S = e^g S_parent, u = sigmoid(b) (v - S k), S += u k^T, o = S q

    with q and k L2-normalised (eps 1e-6) and q scaled by K^-0.5. out gets o, the stash k, u and g. Other rows are left
    alone.
    """
    _, k_heads, k_dim = k.shape
    _, v_heads, v_dim = v.shape
    requests, tree_rows = state_indices.shape[0], scratch.shape[1]
    inner = ((q, k_dim), (k, k_dim), (v, v_dim), (out, v_dim))
    if any(t.stride()[1:] != (d, 1) for t, d in inner) or a.stride(1) != 1 or b.stride(1) != 1:
        raise ValueError("scan_tree: only the row stride of q, k, v, a, b and out is free")
    # On a CPU the kernel is interpreted: an operation costs the same for a large tile as for a small one.
    interpreted = q.device.type == "cpu"
    block_heads = triton.next_power_of_2(v_heads) if interpreted else 1
    block_v = triton.next_power_of_2(v_dim) if interpreted else min(32, triton.next_power_of_2(v_dim))
    grid = (requests, triton.cdiv(v_heads, block_heads), triton.cdiv(v_dim, block_v))
    scan_tree_kernel[grid](
        q,
        q.stride(0),
        k,
        k.stride(0),
        v,
        v.stride(0),
        a,
        a.stride(0),
        b,
        b.stride(0),
        A_log,
        dt_bias,
        ssm_state,
        *ssm_state.stride(),
        state_indices,
        query_start_loc,
        rows.parents,
        rows.tree_len,
        scratch,
        out,
        out.stride(0),
        stash.k,
        stash.u,
        stash.g,
        k_dim**-0.5,
        N=tree_rows,
        HK=k_heads,
        HV=v_heads,
        K=k_dim,
        V=v_dim,
        BN=triton.next_power_of_2(tree_rows),
        BH=block_heads,
        BV=block_v,
        BK=triton.next_power_of_2(k_dim),
        num_warps=4,
        num_stages=1,  # a row reads what an earlier one stored: no load may be hoisted over a store
    )
