"""A tree in the shape of a chain computes what vLLM's own Gated DeltaNet ops compute for the chain, token by token.

Stock is run here in both of its forms: the CPU build's C++ ops, and the Triton kernels that a GPU runs, interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from gdn_batch import Batch, Layer, chain, random_batch, random_layer, tree, verify

from ddtree_ext.kernels.gdn_stash import GdnShape

pytestmark = pytest.mark.engine

TOKENS, SLOT = 6, 5
SHAPES = [GdnShape(2, 4, 64, 64), GdnShape(1, 2, 128, 128), GdnShape(2, 6, 128, 128)]
ULP = 2**-7  # of bfloat16, relative


@dataclass(frozen=True)
class Stock:
    """After every token: conv output [n, dim], output [n, HV, V], state [n, HV, V, K] and window [n, dim, w - 1]."""

    conv: torch.Tensor
    out: torch.Tensor
    states: torch.Tensor
    windows: torch.Tensor


Op = Callable[[Layer, Batch, slice, torch.Tensor], torch.Tensor]


def heads(layer: Layer, conv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k [1, n, HK, K], v [1, n, HV, V]."""
    s = layer.shape
    q, k, v = conv.split([s.k_heads * s.k_dim, s.k_heads * s.k_dim, s.v_heads * s.v_dim], dim=1)
    return (
        q.unflatten(1, (-1, s.k_dim))[None].contiguous(),
        k.unflatten(1, (-1, s.k_dim))[None].contiguous(),
        v.unflatten(1, (-1, s.v_dim))[None].contiguous(),
    )


def token_by_token(layer: Layer, batch: Batch, conv_op: Op, scan_op: Op) -> Stock:
    """Stock's decode, one token a step; `layer`'s caches are advanced."""
    steps = []
    for i in range(batch.x.shape[0]):
        now = slice(i, i + 1)
        conv = conv_op(layer, batch, now, batch.x[now].contiguous())
        out = scan_op(layer, batch, now, conv)
        steps.append((conv[0], out[0], layer.state[SLOT].clone(), layer.window[SLOT].clone()))
    return Stock(*(torch.stack(part) for part in zip(*steps, strict=True)))


def conv_cpu(layer: Layer, batch: Batch, now: slice, x: torch.Tensor) -> torch.Tensor:
    """The op that the CPU build takes on this machine [vllm/model_executor/layers/mamba/ops/cpu/gdn_attention.py]."""
    import vllm._custom_ops as ops
    from vllm.model_executor.layers.mamba.ops.cpu.causal_conv1d import causal_conv1d_update_cpu

    slots = torch.tensor([SLOT], dtype=torch.int32)
    if torch.cpu._is_avx512_bf16_supported():
        packed = ops.causal_conv1d_weight_pack(layer.weight)
        return ops.causal_conv1d_update_cpu(x, layer.window, packed, layer.bias, True, slots, True)
    return causal_conv1d_update_cpu(x, layer.window, layer.weight, layer.bias, "silu", slots)


def scan_cpu(layer: Layer, batch: Batch, now: slice, conv: torch.Tensor) -> torch.Tensor:
    import vllm._custom_ops as ops

    out = ops.fused_sigmoid_gating_delta_rule_update_cpu(
        A_log=layer.a_log,
        dt_bias=layer.dt_bias,
        **dict(zip("qkv", heads(layer, conv), strict=True)),
        a=batch.a[now].contiguous(),
        b=batch.b[now].contiguous(),
        initial_state_source=layer.state.transpose(2, 3),  # the op keeps a state as [K, V]
        initial_state_indices=torch.tensor([SLOT], dtype=torch.int32),
        cu_seqlens=torch.tensor([0, 1], dtype=torch.int32),
        use_qk_l2norm_in_kernel=True,
    )
    return out.view(1, layer.shape.v_heads, layer.shape.v_dim)


def conv_triton(layer: Layer, batch: Batch, now: slice, x: torch.Tensor) -> torch.Tensor:
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

    slots = torch.tensor([SLOT], dtype=torch.int32)
    return causal_conv1d_update(x, layer.window, layer.weight, layer.bias, "silu", conv_state_indices=slots)


def scan_triton(layer: Layer, batch: Batch, now: slice, conv: torch.Tensor) -> torch.Tensor:
    from vllm.third_party.flash_linear_attention.ops import fused_sigmoid_gating_delta_rule_update

    out, _ = fused_sigmoid_gating_delta_rule_update(
        A_log=layer.a_log,
        dt_bias=layer.dt_bias,
        **dict(zip("qkv", heads(layer, conv), strict=True)),
        a=batch.a[now],
        b=batch.b[now],
        initial_state=layer.state,
        inplace_final_state=True,
        cu_seqlens=torch.tensor([0, 1], dtype=torch.int32),
        ssm_state_indices=torch.tensor([SLOT], dtype=torch.int32),
        use_qk_l2norm_in_kernel=True,
    )
    return out.view(1, layer.shape.v_heads, layer.shape.v_dim)


@dataclass(frozen=True)
class Form:
    conv: Op
    scan: Op
    state_order: str
    window_order: str
    beta_error: float  # of sigmoid(b)


CPU = Form(conv_cpu, scan_cpu, "KV", "SD", ULP)  # the op's sigmoid is bfloat16 arithmetic
TRITON = Form(conv_triton, scan_triton, "VK", "SD", 1e-6)


def relative(ours: torch.Tensor, stock: torch.Tensor) -> float:
    """Largest difference over the largest magnitude."""
    return float((ours.double() - stock.double()).abs().max() / stock.double().abs().max())


def one_chain(rng: torch.Generator, form: Form, shape: GdnShape) -> tuple[Layer, Batch]:
    layer = random_layer(rng, shape, state_order=form.state_order, window_order=form.window_order)
    return layer, random_batch(rng, shape, [tree(SLOT, chain(TOKENS))], torch.bfloat16)


# Our outputs are taken in float32 here and rounded by torch: Triton's interpreter cuts where hardware rounds.


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", [CPU, TRITON], ids=["cpu", "triton"])
class TestChain:
    def test_convolves_as_stock_does(self, rng: torch.Generator, form: Form, shape: GdnShape) -> None:
        layer, batch = one_chain(rng, form, shape)
        stock = token_by_token(layer.copy(), batch, form.conv, form.scan)
        ours = verify(layer, batch, out_dtype=torch.float32)
        torch.testing.assert_close(ours.conv.bfloat16(), stock.conv, rtol=ULP, atol=1e-6)
        assert (ours.conv.bfloat16() != stock.conv).double().mean() < 0.01

    def test_commits_the_window_that_stock_leaves(self, rng: torch.Generator, form: Form, shape: GdnShape) -> None:
        layer, batch = one_chain(rng, form, shape)
        stock = token_by_token(layer.copy(), batch, form.conv, form.scan)
        for accepted in range(TOKENS):
            ours = verify(layer.copy(), batch)
            ours.commit([list(range(accepted + 1))])
            assert torch.equal(ours.layer.window[SLOT], stock.windows[accepted])

    def test_scans_and_commits_as_stock_does(self, rng: torch.Generator, form: Form, shape: GdnShape) -> None:
        """From the same convolution outputs. b is such that bfloat16 holds sigmoid(b): the C++ op rounds it."""
        layer, batch = one_chain(rng, form, shape)
        batch.b.copy_(torch.tensor([0.0, 30.0, -30.0])[torch.randint(0, 3, batch.b.shape, generator=rng)])
        stock = token_by_token(layer.copy(), batch, form.conv, form.scan)
        ours = verify(layer, batch, out_dtype=torch.float32, conv_outputs=stock.conv)
        torch.testing.assert_close(ours.out, stock.out.float(), rtol=ULP, atol=1e-6)
        for accepted in (0, TOKENS // 2, TOKENS - 1):
            committed = replace(ours, layer=layer.copy())
            committed.commit([list(range(accepted + 1))])
            assert relative(committed.layer.state[SLOT], stock.states[accepted]) < 1e-6

    def test_scans_as_stock_does_with_any_gate(self, rng: torch.Generator, form: Form, shape: GdnShape) -> None:
        layer, batch = one_chain(rng, form, shape)
        stock = token_by_token(layer.copy(), batch, form.conv, form.scan)
        ours = verify(layer, batch, out_dtype=torch.float32, conv_outputs=stock.conv)
        ours.commit([list(range(TOKENS))])
        assert relative(ours.layer.state[SLOT], stock.states[-1]) < form.beta_error
        assert relative(ours.out, stock.out) < ULP + 2 * form.beta_error
