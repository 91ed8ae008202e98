"""The layer's two ways through a batch of trees: our norm on the projection's own rows gives what stock's gives on copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from conftest import DEVICE
from gdn_batch import SLOTS, ancestor_words, chain, random_parents

from ddtree_ext.core.buffers import DEAD
from ddtree_ext.engine.step import VerifyStep
from ddtree_ext.kernels.gdn_stash import GdnScratch, GdnShape, GdnStash

pytestmark = pytest.mark.engine

PREFIX, PADDING, WIDTH = "model.layers.0.linear_attn", 3, 4
BUDGET = 8


@dataclass(frozen=True)
class Run:
    """What a pass over the same rows left: the normed output [T, HV, V], and the stash."""

    out: torch.Tensor
    stash: GdnStash


class Harness:
    """A layer of `shape` without a model around it, bound to a step of trees, and what its projections gave for the batch."""

    def __init__(self, rng: torch.Generator, shape: GdnShape) -> None:
        from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata

        self.shape, self.rng = shape, rng
        trees = [random_parents(rng, BUDGET + 1), chain(5), [-1]]
        lengths = [len(parents) for parents in trees]
        self.actual = sum(lengths)
        self.metadata = GDNAttentionMetadata(0, 0, 0, 0, len(trees), self.actual, self.actual)
        self.step = self.bind(trees, lengths)
        tokens, values = self.actual + PADDING, shape.v_heads * shape.v_dim
        self.projected = self.normal(tokens, shape.conv_dim + values).bfloat16()
        self.gates = self.normal(tokens, 2 * shape.v_heads).bfloat16()
        self.layer = self.build()

    def normal(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, generator=self.rng)

    def bind(self, trees: list[list[int]], lengths: list[int]) -> VerifyStep:
        step = VerifyStep.allocate(len(trees), self.actual + PADDING, BUDGET, torch.device(DEVICE))
        starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int()
        step.rows.parents.fill_(DEAD)
        for number, parents in enumerate(trees):
            own = slice(int(starts[number]), int(starts[number + 1]))
            step.rows.parents[own] = torch.tensor(parents, dtype=torch.int32)
            step.rows.ancestors[own] = torch.tensor(ancestor_words(parents))
        step.rows.tree_len[:] = torch.tensor(lengths, dtype=torch.int32)
        step.query_start_loc, step.num_reqs = starts, len(trees)
        step.state_slots = torch.tensor([[3, 1, 5]], dtype=torch.int32)
        step.any_tree = step.all_trees = True
        return step

    def build(self) -> torch.nn.Module:
        """TreeGatedDeltaNet with what its core reads, and nothing of what a model's configuration would give."""
        from vllm.model_executor.layers.layernorm import RMSNormGated

        from ddtree_ext.engine.gdn_layer import TreeGatedDeltaNet

        shape, layer = self.shape, TreeGatedDeltaNet.__new__(TreeGatedDeltaNet)
        torch.nn.Module.__init__(layer)
        layer.prefix, layer.tp_size, layer.num_v_heads = PREFIX, 1, shape.v_heads
        layer.head_k_dim, layer.head_v_dim = shape.k_dim, shape.v_dim
        layer.key_dim, layer.value_dim = shape.k_heads * shape.k_dim, shape.v_heads * shape.v_dim
        layer.disable_tp_for_ba_proj = False
        layer.conv1d = SimpleNamespace(weight=self.normal(shape.conv_dim, 1, WIDTH).bfloat16(), bias=None)
        layer.A_log, layer.dt_bias = self.normal(shape.v_heads), self.normal(shape.v_heads).bfloat16()
        window = self.normal(SLOTS, WIDTH - 1, shape.conv_dim).bfloat16()
        layer.kv_cache = [window, self.normal(SLOTS, shape.v_heads, shape.v_dim, shape.k_dim)]
        with mock.patch("vllm.model_executor.custom_op.CustomOp.dispatch_forward", return_value=None):
            layer.norm = RMSNormGated(shape.v_dim, eps=1e-6, norm_before_gate=True, activation="silu")
        layer.norm.weight.data = (self.normal(shape.v_dim) + 1).bfloat16()
        return layer

    def run(self) -> Run:
        """One pass as the custom op makes it, on a stash and a scratch of its own."""
        from ddtree_ext.engine.gdn_layer import TreeBinding

        count, tokens = self.step.num_reqs, len(self.projected)
        stash = GdnStash.allocate(count, BUDGET + 1, self.shape, torch.bfloat16, DEVICE)
        scratch = GdnScratch.allocate(count, BUDGET + 1, self.shape, DEVICE)
        self.layer.bind(TreeBinding(self.step, stash, scratch, 0))
        out = torch.zeros(tokens, self.shape.v_heads, self.shape.v_dim, dtype=torch.bfloat16)
        out[self.actual :] = 7.0
        context = SimpleNamespace(attn_metadata={PREFIX: self.metadata})
        stock = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
        guard = "vllm.third_party.flash_linear_attention.ops.layernorm_guard"
        with (
            torch.no_grad(),
            mock.patch(f"{stock}.get_forward_context", return_value=context),
            mock.patch("ddtree_ext.engine.gdn_layer.get_forward_context", return_value=context),
            mock.patch(f"{guard}.num_compute_units", return_value=132),
        ):
            self.layer._forward_core_fused_norm_packed(self.projected, self.gates, out)
        return Run(out, stash)

    def stock(self) -> Run:
        """The same pass through stock's fused path: it copies b, a and the gate, and calls its own norm."""
        with mock.patch.object(type(self.layer), "_norms_trees", return_value=False):
            return self.run()


def assert_same(ours: torch.Tensor, stock: torch.Tensor) -> None:
    """Bit for bit where both are interpreted; compiled, the sums of squares differ in their order."""
    if DEVICE == "cpu":
        assert torch.equal(ours, stock)
    else:
        torch.testing.assert_close(ours, stock, rtol=2**-6, atol=1e-6)


@pytest.fixture(params=[GdnShape(2, 6, 128, 128), GdnShape(2, 4, 64, 64)], ids=str)
def harness(rng: torch.Generator, request: pytest.FixtureRequest) -> Harness:
    return Harness(rng, request.param)


@pytest.fixture
def norms() -> Iterator[mock.Mock]:
    """Calls of our norm, which go through."""
    from ddtree_ext.engine import gdn_layer

    with mock.patch.object(gdn_layer, "gated_norm", wraps=gdn_layer.gated_norm) as called:
        yield called


class TestTreesAlone:
    @pytest.mark.parametrize("activation", ["silu", "sigmoid"])
    @pytest.mark.parametrize("norm_before_gate", [True, False])
    @pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32], ids=str)
    def test_give_what_stocks_norm_gives(
        self,
        harness: Harness,
        norms: mock.Mock,
        activation: str,
        norm_before_gate: bool,
        weight_dtype: torch.dtype,
    ) -> None:
        norm = harness.layer.norm
        norm.activation, norm.norm_before_gate = activation, norm_before_gate
        norm.weight.data = norm.weight.data.to(weight_dtype)
        stock = harness.stock()
        assert norms.call_count == 0
        ours = harness.run()
        assert norms.call_count == 1
        assert bool((ours.out[: harness.actual].abs().amax(-1) > 0).all())
        assert_same(ours.out, stock.out)

    def test_leave_the_same_stash(self, harness: Harness) -> None:
        stock, ours = harness.stock().stash, harness.run().stash
        pairs = (stock.x, ours.x), (stock.k, ours.k), (stock.u, ours.u), (stock.decay, ours.decay)
        assert all(torch.equal(expected, got) for expected, got in pairs)

    def test_leave_the_padding(self, harness: Harness) -> None:
        assert bool((harness.run().out[harness.actual :] == 7.0).all())

    def test_are_read_where_the_projections_left_them(self, harness: Harness, norms: mock.Mock) -> None:
        from ddtree_ext.engine import gdn_layer

        with mock.patch.object(gdn_layer, "delta_tree", wraps=gdn_layer.delta_tree) as delta:
            harness.run()
        a, b = delta.call_args.args[3:5]
        gate = norms.call_args.args[1]
        wide, beside = harness.gates, harness.projected
        assert [t.untyped_storage().data_ptr() for t in (a, b)] == [wide.untyped_storage().data_ptr()] * 2
        assert gate.untyped_storage().data_ptr() == beside.untyped_storage().data_ptr()
        assert gate.stride(0) == beside.stride(0)

    def test_of_one_group_are_ours_too(self, harness: Harness, norms: mock.Mock) -> None:
        harness.layer.norm.group_size = harness.shape.v_dim
        assert_same(harness.run().out, harness.stock().out)
        assert norms.call_count == 1


class TestStockKeeps:
    """What our norm does not compute, and what is no batch of trees alone."""

    @pytest.mark.parametrize("change", ["group_size", "activation", "bias"])
    def test_other_norms(self, harness: Harness, norms: mock.Mock, change: str) -> None:
        width = harness.shape.v_dim
        values = {"group_size": width // 2, "activation": "none", "bias": torch.nn.Parameter(torch.zeros(width))}
        setattr(harness.layer.norm, change, values[change])
        with mock.patch.object(harness.layer, "_rms_norm_gated_cuda") as stock:
            harness.run()
        assert (stock.call_count, norms.call_count) == (1, 0)

    @pytest.mark.parametrize("any_tree", [True, False])
    def test_batches_with_other_rows(self, harness: Harness, norms: mock.Mock, any_tree: bool) -> None:
        """Without a request at all, all of them are trees and none is."""
        harness.step.any_tree, harness.step.all_trees = any_tree, not any_tree
        with (
            mock.patch.object(harness.layer, "_forward_core") as core,
            mock.patch.object(harness.layer, "_rms_norm_gated_cuda") as stock,
        ):
            harness.run()
        assert (core.call_count, stock.call_count, norms.call_count) == (1, 1, 0)

    def test_passes_without_metadata(self, harness: Harness, norms: mock.Mock) -> None:
        """vLLM's memory profiling: it warms stock's prefill kernels."""
        harness.metadata = None
        with mock.patch.object(harness.layer, "_warmup_prefill_kernels") as warm_up:
            assert bool((harness.run().out[: harness.actual] == 0).all())
        assert (warm_up.call_count, norms.call_count) == (1, 0)
