"""The gated delta rule over a tree, as a scan: every row's state grows from its parent's.

Arithmetic and its order are those of vLLM's `fused_sigmoid_gating_delta_rule_update` (decay, dot, update, output; in
float32), so that a tree in the shape of a chain gives what the chain gives. Two launches: what depends on no state (norms,
gates, the order of the visit) for all rows at once, then the scan.

The order of the visit: inner rows as they stand, each followed by its leaves. A scan holds the state of the last inner row in
registers, and most rows of a draft tree are its spine and leaves beside it: they read and write no state in memory. Only an
inner row whose parent is not the inner row before it loads a state, and only the parents of such rows store theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ddtree_ext.kernels.gdn_stash import GdnScratch, GdnStash

if TYPE_CHECKING:
    from ddtree_ext.core.buffers import TreeRows


@triton.jit  # type: ignore[untyped-decorator]
def plan_visit(parents_ptr: tl.tensor, tree_len: tl.tensor, plan_ptr: tl.tensor, BN: tl.constexpr) -> None:
    """Writes tree_len steps: row | (1 + row whose state to load, or 0) << 8 | (is a leaf) << 16 | (store the state) << 17."""
    row = tl.arange(0, BN)
    live = row < tree_len
    parent = tl.load(parents_ptr + row, mask=live, other=-2)
    child = parent[None, :] == row[:, None]  # [row, row of a child]
    inner = tl.max(child.to(tl.int32), 1)
    previous = tl.max(tl.where((row[None, :] < row[:, None]) & (inner[None, :] > 0), row[None, :], -1), 1)
    loads = ((inner > 0) & (parent != previous)).to(tl.int32)
    stores = tl.max(child.to(tl.int32) * loads[None, :], 1)
    leaf = 1 - inner
    key = (tl.where(inner > 0, row, parent) * 2 + leaf) * BN + row
    key = tl.where(live, key, 4 * BN * BN)
    place = tl.sum((key[None, :] < key[:, None]).to(tl.int32), 1)
    tl.store(plan_ptr + place, row + ((loads * (parent + 1)) << 8) + (leaf << 16) + (stores << 17), mask=live)


@triton.jit  # type: ignore[untyped-decorator]
def prepare_rows_kernel(
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
    parents_ptr: tl.tensor,
    tree_len_ptr: tl.tensor,
    plan_ptr: tl.tensor,
    scratch_q_ptr: tl.tensor,
    beta_ptr: tl.tensor,
    stash_k_ptr: tl.tensor,
    decay_ptr: tl.tensor,
    scale: tl.tensor,
    N: tl.constexpr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    BN: tl.constexpr,
    BR: tl.constexpr,
    BH: tl.constexpr,
    BK: tl.constexpr,
    BG: tl.constexpr,
) -> None:
    """One program: BR rows x BH K-heads of one request; the first head block also does the gates of all V-heads.

    Grid (R, row blocks, head blocks). BG is a power of two, >= HV. A request's last program plans the visit.
    """
    request = tl.program_id(0)
    first = tl.program_id(1) * BR
    tree_len = tl.load(tree_len_ptr + request)
    if (tl.load(state_indices_ptr + request) <= 0) | (first >= tree_len):
        return
    row = first + tl.arange(0, BR)
    live = row < tree_len
    start = tl.load(query_start_ptr + request).to(tl.int64)
    token = start + row
    kept = request.to(tl.int64) * N + row

    head = tl.program_id(2) * BH + tl.arange(0, BH)
    in_k = tl.arange(0, BK)
    mask = live[:, None, None] & (head < HK)[None, :, None] & (in_k < K)[None, None, :]
    at = (head * K)[None, :, None] + in_k[None, None, :]
    kept_at = kept[:, None, None] * (HK * K) + at
    q = tl.load(q_ptr + token[:, None, None] * q_row + at, mask=mask, other=0.0).to(tl.float32)
    k = tl.load(k_ptr + token[:, None, None] * k_row + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(scratch_q_ptr + kept_at, q * tl.rsqrt(tl.sum(q * q, 2) + 1e-6)[:, :, None] * scale, mask=mask)
    tl.store(stash_k_ptr + kept_at, k * tl.rsqrt(tl.sum(k * k, 2) + 1e-6)[:, :, None], mask=mask)

    if tl.program_id(2) == 0:
        v_head = tl.arange(0, BG)
        known = v_head < HV
        gate = live[:, None] & known[None, :]
        neg_a = -tl.exp(tl.load(a_log_ptr + v_head, mask=known, other=0.0).to(tl.float32))
        dt_bias = tl.load(dt_bias_ptr + v_head, mask=known, other=0.0).to(tl.float32)
        a = tl.load(a_ptr + token[:, None] * a_row + v_head[None, :], mask=gate, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + token[:, None] * b_row + v_head[None, :], mask=gate, other=0.0).to(tl.float32)
        dt = a + dt_bias[None, :]
        g = neg_a[None, :] * tl.where(dt <= 20.0, tl.log(1 + tl.exp(dt)), dt)
        gate_at = kept[:, None] * HV + v_head[None, :]
        tl.store(decay_ptr + gate_at, tl.exp(g), mask=gate)
        tl.store(beta_ptr + gate_at, tl.sigmoid(b), mask=gate)
    if (first == 0) & (tl.program_id(2) == tl.num_programs(2) - 1):
        plan_visit(parents_ptr + start, tree_len, plan_ptr + request.to(tl.int64) * N, BN)


@triton.jit  # type: ignore[untyped-decorator]
def scan_tree_kernel(
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
    plan_ptr: tl.tensor,
    states_ptr: tl.tensor,
    q_ptr: tl.tensor,
    beta_ptr: tl.tensor,
    k_ptr: tl.tensor,
    u_ptr: tl.tensor,
    decay_ptr: tl.tensor,
    out_ptr: tl.tensor,
    out_row: tl.tensor,
    N: tl.constexpr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
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
    kept = request.to(tl.int64) * N
    head = tl.program_id(1) * BH + tl.arange(0, BH)
    in_v, in_k = tl.program_id(2) * BV + tl.arange(0, BV), tl.arange(0, BK)
    h_mask = head < HV
    k_mask, v_mask = h_mask[:, None] & (in_k < K)[None, :], h_mask[:, None] & (in_v < V)[None, :]
    mask = v_mask[:, :, None] & (in_k < K)[None, None, :]
    # V-head h reads K-head h // (HV / HK).
    k_at = kept * (HK * K) + (head // (HV // HK))[:, None] * K + in_k[None, :]
    v_at = head[:, None] * V + in_v[None, :]
    states_at = states_ptr + kept * (HV * V * K) + v_at[:, :, None] * K + in_k[None, None, :]
    q_at, k_at = q_ptr + k_at, k_ptr + k_at
    beta_at, decay_at = beta_ptr + kept * HV + head, decay_ptr + kept * HV + head
    u_at, out_at = u_ptr + kept * (HV * V) + v_at, out_ptr + start * out_row + v_at
    v_at = v_ptr + start * v_row + v_at
    plan_at = plan_ptr + kept

    at = slot * state_slot + head[:, None, None] * state_head + in_v[None, :, None] * state_v
    state = tl.load(state_ptr + at + in_k[None, None, :] * state_k, mask=mask, other=0.0).to(tl.float32)
    step = tl.load(plan_at)
    row = step & 255
    q = tl.load(q_at + row * (HK * K), mask=k_mask, other=0.0)
    k = tl.load(k_at + row * (HK * K), mask=k_mask, other=0.0)
    v = tl.load(v_at + row * v_row, mask=v_mask, other=0.0)
    decay = tl.load(decay_at + row * HV, mask=h_mask, other=0.0)
    beta = tl.load(beta_at + row * HV, mask=h_mask, other=0.0)
    for i in tl.range(1, tree_len + 1):
        # The next row's inputs are asked for before this row's outputs are stored, which no load may pass. The last row
        # asks for itself.
        next_step = tl.load(plan_at + tl.minimum(i, tree_len - 1))
        next_row = next_step & 255
        next_q = tl.load(q_at + next_row * (HK * K), mask=k_mask, other=0.0)
        next_k = tl.load(k_at + next_row * (HK * K), mask=k_mask, other=0.0)
        next_v = tl.load(v_at + next_row * v_row, mask=v_mask, other=0.0)
        next_decay = tl.load(decay_at + next_row * HV, mask=h_mask, other=0.0)
        next_beta = tl.load(beta_at + next_row * HV, mask=h_mask, other=0.0)

        source = (step >> 8) & 255
        if source > 0:
            tl.debug_barrier()  # what other threads of this program stored is visible from here on
            state = tl.load(states_at + (source - 1) * (HV * V * K), mask=mask, other=0.0)
        grown = state * decay[:, None, None]
        u = (v.to(tl.float32) - tl.sum(grown * k[:, None, :], 2)) * beta[:, None]
        # One rounding wherever this is compiled, so that the commit's replay gives the same bits.
        grown = tl.fma(u[:, :, None], k[:, None, :], grown)
        tl.store(u_at + row * (HV * V), u, mask=v_mask)
        tl.store(out_at + row * out_row, tl.sum(grown * q[:, None, :], 2).to(out_ptr.dtype.element_ty), mask=v_mask)
        if (step >> 16) & 1 == 0:
            state = grown
        if step >> 17 > 0:
            tl.store(states_at + row * (HV * V * K), state, mask=mask)
        step, row, q, k, v, decay, beta = next_step, next_row, next_q, next_k, next_v, next_decay, next_beta


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
    scratch: GdnScratch,
    out: torch.Tensor,
    stash: GdnStash,
) -> None:
    """Gated delta rule along every row's root path; the committed state is read, not written.

    q, k [T, HK, K], v [T, HV, V]: convolution outputs, only the row stride is free; a, b [T, HV]; A_log, dt_bias [HV];
    ssm_state [slots, HV, V, K] with any strides; state_indices [R] (a slot <= 0 is a null block or padding: skipped);
    query_start_loc [R + 1]; out [T, HV, V]; scratch and stash for at least R requests.
    For each row < tree_len of a tree, V-head h with K-head h // (HV / HK):

        g = -exp(A_log) softplus(a + dt_bias), S = e^g S_parent, u = sigmoid(b) (v - S k), S += u k^T, o = S q

    with q and k L2-normalised (eps 1e-6), q scaled by K^-0.5, softplus linear above 20. out gets o; the stash k, u and
    e^g. Other rows are left alone. At most 64 rows a tree.
    """
    _, k_heads, k_dim = k.shape
    _, v_heads, v_dim = v.shape
    requests, tree_rows = state_indices.shape[0], stash.k.shape[1]
    inner = ((q, k_dim), (k, k_dim), (v, v_dim), (out, v_dim))
    if any(t.stride()[1:] != (d, 1) for t, d in inner) or a.stride(1) != 1 or b.stride(1) != 1:
        raise ValueError("scan_tree: only the row stride of q, k, v, a, b and out is free")
    # On a CPU the kernels are interpreted: an operation costs the same for a large tile as for a small one.
    interpreted = q.device.type == "cpu"
    block_k = triton.next_power_of_2(k_dim)
    block_rows = triton.next_power_of_2(tree_rows) if interpreted else 16
    block_heads = triton.next_power_of_2(k_heads) if interpreted else 1
    prepare_rows_kernel[(requests, triton.cdiv(tree_rows, block_rows), triton.cdiv(k_heads, block_heads))](
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
        rows.parents,
        rows.tree_len,
        scratch.plan,
        scratch.q,
        scratch.beta,
        stash.k,
        stash.decay,
        k_dim**-0.5,
        N=tree_rows,
        HK=k_heads,
        HV=v_heads,
        K=k_dim,
        BN=triton.next_power_of_2(tree_rows),
        BR=block_rows,
        BH=block_heads,
        BK=block_k,
        BG=triton.next_power_of_2(v_heads),
        num_warps=4,
    )
    block_heads = triton.next_power_of_2(v_heads) if interpreted else 1
    block_v = triton.next_power_of_2(v_dim) if interpreted else min(8, triton.next_power_of_2(v_dim))
    scan_tree_kernel[(requests, triton.cdiv(v_heads, block_heads), triton.cdiv(v_dim, block_v))](
        v,
        v.stride(0),
        ssm_state,
        *ssm_state.stride(),
        state_indices,
        query_start_loc,
        rows.tree_len,
        scratch.plan,
        scratch.states,
        scratch.q,
        scratch.beta,
        stash.k,
        stash.u,
        stash.decay,
        out,
        out.stride(0),
        N=tree_rows,
        HK=k_heads,
        HV=v_heads,
        K=k_dim,
        V=v_dim,
        BH=block_heads,
        BV=block_v,
        BK=block_k,
        num_warps=1,  # with 8 state rows the fastest of ten forms on an H200, for 1 to 8 requests of 16 to 64 rows
        num_stages=1,  # a row reads what an earlier one stored: no load may be hoisted over a store
    )
