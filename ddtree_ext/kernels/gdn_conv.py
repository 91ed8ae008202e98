"""The causal convolution of a Gated DeltaNet layer over a tree: taps come from ancestors, not from the rows before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from ddtree_ext.core.buffers import TreeRows


@triton.jit  # type: ignore[untyped-decorator]
def conv_tree_kernel(
    x_ptr: tl.tensor,
    x_row: tl.tensor,
    window_ptr: tl.tensor,
    window_slot: tl.tensor,
    window_dim: tl.tensor,
    window_col: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    state_indices_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    parents_ptr: tl.tensor,
    tree_len_ptr: tl.tensor,
    out_ptr: tl.tensor,
    out_row: tl.tensor,
    stash_ptr: tl.tensor,
    stash_request: tl.tensor,
    stash_row: tl.tensor,
    dim: tl.tensor,
    HAS_BIAS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
) -> None:
    """One program: BLOCK_ROWS rows of one request's tree x BLOCK_DIM features. Grid (R, row blocks, feature blocks)."""
    request = tl.program_id(0)
    first = tl.program_id(1) * BLOCK_ROWS
    tree_len = tl.load(tree_len_ptr + request)
    slot = tl.load(state_indices_ptr + request).to(tl.int64)
    if (slot <= 0) | (first >= tree_len):
        return
    start = tl.load(query_start_ptr + request).to(tl.int64)
    row = first + tl.arange(0, BLOCK_ROWS)
    feature = tl.program_id(2) * BLOCK_DIM + tl.arange(0, BLOCK_DIM)
    live = row < tree_len
    known = feature < dim
    mask = live[:, None] & known[None, :]
    x_base = x_ptr + start * x_row + feature[None, :]
    # Column WIDTH - 1 + s of the committed window is the input s steps before the root (s < 0).
    window_base = window_ptr + slot * window_slot + (WIDTH - 1) * window_col + (feature * window_dim)[None, :]

    acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], dtype=tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + feature, mask=known, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(WIDTH - 1):  # the oldest input first, in the order in which a chain is summed
        source = row
        for _hop in tl.static_range(WIDTH - 1 - tap):
            parent = tl.load(parents_ptr + start + source, mask=live & (source >= 0), other=-1)
            source = tl.where(source >= 0, parent, source - 1)
        drafted = mask & (source >= 0)[:, None]
        committed = mask & (source < 0)[:, None]
        value = tl.load(x_base + source[:, None].to(tl.int64) * x_row, mask=drafted, other=0.0).to(tl.float32)
        # Exactly one of the two loads is live in each element; the other one is 0.
        value += tl.load(window_base + source[:, None] * window_col, mask=committed, other=0.0).to(tl.float32)
        acc += value * tl.load(weight_ptr + feature * WIDTH + tap, mask=known, other=0.0).to(tl.float32)[None, :]
    own = tl.load(x_base + row[:, None].to(tl.int64) * x_row, mask=mask, other=0.0)
    tap_own = tl.load(weight_ptr + feature * WIDTH + (WIDTH - 1), mask=known, other=0.0).to(tl.float32)
    acc += own.to(tl.float32) * tap_own[None, :]

    acc = acc / (1 + tl.exp(-acc))
    out_at = out_ptr + (start + row)[:, None] * out_row + feature[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=mask)
    stash_at = stash_ptr + request.to(tl.int64) * stash_request + row[:, None] * stash_row + feature[None, :]
    tl.store(stash_at, own, mask=mask)


def conv_tree(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    rows: TreeRows,
    out: torch.Tensor,
    stash_x: torch.Tensor,
) -> None:
    """SiLU of the causal depthwise convolution along every row's root path; the committed window is read, not written.

    x [T, dim] raw inputs (rows may be strided); conv_state [slots, dim, >= width - 1], any strides, the last width - 1
    committed inputs in columns 0 .. width - 2; weight [dim, width]; bias [dim] or None; state_indices [R] (a slot <= 0
    is a null block or padding: skipped); query_start_loc [R + 1]; out [T, dim]; stash_x [>= R, N, dim] gets the raw
    rows.
    Sums in float32. Writes only the rows < tree_len of the requests that are trees.
    """
    _, dim = x.shape
    width = weight.shape[1]
    if x.stride(1) != 1 or out.stride(1) != 1 or stash_x.stride(2) != 1 or not weight.is_contiguous():
        raise ValueError("conv_tree: x, out and stash_x need a stride of 1 along dim, and weight must be contiguous")
    requests, tree_rows = state_indices.shape[0], stash_x.shape[1]
    # On a CPU the kernel is interpreted: an operation costs the same for a large tile as for a small one.
    interpreted = x.device.type == "cpu"
    block_rows = triton.next_power_of_2(tree_rows) if interpreted else 8
    block_dim = triton.next_power_of_2(dim) if interpreted else 256
    grid = (requests, triton.cdiv(tree_rows, block_rows), triton.cdiv(dim, block_dim))
    conv_tree_kernel[grid](
        x,
        x.stride(0),
        conv_state,
        *conv_state.stride(),
        weight,
        bias,
        state_indices,
        query_start_loc,
        rows.parents,
        rows.tree_len,
        out,
        out.stride(0),
        stash_x,
        stash_x.stride(0),
        stash_x.stride(1),
        dim,
        HAS_BIAS=bias is not None,
        WIDTH=width,
        BLOCK_ROWS=block_rows,
        BLOCK_DIM=block_dim,
        num_warps=4,
    )
