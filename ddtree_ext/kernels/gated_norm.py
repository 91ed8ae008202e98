"""The gated RMS norm behind a Gated DeltaNet layer, in place; the gate is read where the projection left it.

The arithmetic, float32 in this order, is that of vLLM's `layer_norm_fwd` with is_rms_norm and one group
[vllm/third_party/flash_linear_attention/ops/layernorm_guard.py], which wants all heads of the gate at one stride, and so a copy.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

ACTIVATIONS = {"silu": False, "swish": False, "sigmoid": True}
"""The gate's activations, and whether they are the sigmoid alone."""

BLOCK_ROWS = 8
"""Heads of tokens in a program: with 128 columns 8 elements a thread, 16 bytes of bfloat16."""


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def gated_norm_kernel(
    x_ptr: tl.tensor,
    x_token: tl.tensor,
    gate_ptr: tl.tensor,
    gate_token: tl.tensor,
    weight_ptr: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    HV: tl.constexpr,
    V: tl.constexpr,
    NORM_BEFORE_GATE: tl.constexpr,
    SIGMOID: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_V: tl.constexpr,
) -> None:
    """One program: BLOCK_ROWS rows of V; row r is head r % HV of token r // HV. Grid (row blocks)."""
    row, column = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS), tl.arange(0, BLOCK_V)
    mask = (row < rows)[:, None] & (column < V)[None, :]
    token, in_token = (row // HV).to(tl.int64)[:, None], (row % HV * V)[:, None] + column[None, :]
    x_at = x_ptr + token * x_token + in_token
    x = tl.load(x_at, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(gate_ptr + token * gate_token + in_token, mask=mask, other=0.0).to(tl.float32)
    gate = tl.sigmoid(z) if SIGMOID else z * tl.sigmoid(z)
    if not NORM_BEFORE_GATE:
        x *= gate
    rstd = tl.rsqrt(tl.sum(x * x, 1) / V + eps)
    weight = tl.load(weight_ptr + column, mask=column < V, other=0.0).to(tl.float32)
    y = x * rstd[:, None] * weight[None, :]
    if NORM_BEFORE_GATE:
        y *= gate
    tl.store(x_at, y.to(x_ptr.dtype.element_ty), mask=mask)


def gated_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    activation: str = "silu",
    norm_before_gate: bool = True,
    block_rows: int | None = None,
) -> None:
    """x becomes x / sqrt(mean(x^2) + eps) * weight * act(gate), means over V; or, gated first, the norm of x * act(gate).

    x, gate [T, HV, V], of which only the stride from token to token is free; weight [V] contiguous, of any floating type;
    activation one of ACTIVATIONS; block_rows, a power of two, of a program's rows. Float32 throughout, rounded once, to x's
    type. Raises ValueError for what it does not take.
    """
    tokens, heads, width = x.shape
    if gate.shape != x.shape or weight.shape != (width,):
        raise ValueError(f"gated_norm: x {tuple(x.shape)}, gate {tuple(gate.shape)} and weight {tuple(weight.shape)}")
    if any(t.stride()[1:] != (width, 1) for t in (x, gate)) or not weight.is_contiguous():
        raise ValueError("gated_norm: only the token stride of x and gate is free, and weight must be contiguous")
    if activation not in ACTIVATIONS:
        raise ValueError(f"gated_norm: activation {activation!r} is none of {', '.join(ACTIVATIONS)}")
    if tokens == 0:
        return
    rows = tokens * heads
    # On a CPU the kernel is interpreted: an operation costs the same for a large tile as for a small one.
    block_rows = block_rows or (triton.next_power_of_2(rows) if x.device.type == "cpu" else BLOCK_ROWS)
    gated_norm_kernel[(triton.cdiv(rows, block_rows),)](
        x,
        x.stride(0),
        gate,
        gate.stride(0),
        weight,
        rows,
        eps,
        HV=heads,
        V=width,
        NORM_BEFORE_GATE=norm_before_gate,
        SIGMOID=ACTIVATIONS[activation],
        BLOCK_ROWS=block_rows,
        BLOCK_V=triton.next_power_of_2(width),
        num_warps=4,
    )
