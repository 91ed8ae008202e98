"""The Gated DeltaNet layer whose drafted rows form a tree: no state per node, none of stock's speculative kernels.

Stock writes the state after every draft token into a slot of its own and widens the convolution window by the drafts. Here a
request keeps one committed state and one window; a verify step reads them, stashes what a commit needs, and the commit
(engine/commit.py) replays the accepted path. Rows of prompts go through stock, presented to it as a batch of their own. Where
stock's layer also norms and gates, a batch of trees alone is normed by our kernel: stock's wants a copy of the gate, of b and of a.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

from ddtree_ext.engine.gdn_metadata import TreeGDNBackend
from ddtree_ext.engine.step import VerifyStep
from ddtree_ext.kernels.gated_norm import ACTIVATIONS, gated_norm
from ddtree_ext.kernels.gdn_conv import conv_tree
from ddtree_ext.kernels.gdn_delta import delta_tree
from ddtree_ext.kernels.gdn_stash import GdnScratch, GdnStash

Core = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True)
class TreeBinding:
    """What a layer needs of the verify step: its stash, the shared scratch, and where its state slots stand."""

    step: VerifyStep
    stash: GdnStash
    scratch: GdnScratch
    group: int


class TreeGatedDeltaNet(QwenGatedDeltaNetAttention):  # type: ignore[misc]
    """Registered out of tree under the stock class's name, so every Qwen3.5/3.6 and Qwen3-Next layer becomes one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_spec = 0
        self._binding: TreeBinding | None = None

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        """One state slot per request: no slots for drafts."""
        return replace(super().get_kv_cache_spec(vllm_config), num_speculative_blocks=0)

    def get_attn_backend(self) -> type[TreeGDNBackend]:
        """Stock's kind of metadata, with less of it to write in each step."""
        return TreeGDNBackend

    def bind(self, binding: TreeBinding) -> None:
        """From here on, rows of trees are computed along their ancestors; unbound, the layer is stock's."""
        self._binding = binding

    @property
    def state(self) -> torch.Tensor:
        """Committed states [slots, HV, V, K] float32; the CPU build keeps them transposed [ops/cpu/gdn_attention.py]."""
        state = self.kv_cache[1]
        if state.device.type != "cpu":
            return state
        slots, heads, v_dim, k_dim = state.shape
        return state.view(slots, heads, k_dim, v_dim).transpose(-1, -2)

    @property
    def window(self) -> torch.Tensor:
        """Committed convolution inputs [slots, dim, width - 1], oldest first."""
        window: torch.Tensor = self.kv_cache[0]
        return window if is_conv_state_dim_first() else window.transpose(-1, -2)

    def _can_use_fused_gdn_mtp_decode(self, attn_metadata: Any) -> bool:
        return False

    def _forward_core(
        self, mixed_qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, core_attn_out: torch.Tensor
    ) -> None:
        self._core(super()._forward_core, mixed_qkv, b, a, core_attn_out)

    def _forward_core_fused_norm(
        self,
        mixed_qkv: torch.Tensor,
        b: torch.Tensor,
        a: torch.Tensor,
        output_gate: torch.Tensor,
        core_attn_out: torch.Tensor,
    ) -> None:
        """As `_core`, with b and a rows of `in_proj_ba`; then core_attn_out is normed and gated in place."""
        metadata, binding = self._metadata(), self._binding
        if metadata is None or binding is None or not self._norms_trees(binding.step):
            super()._forward_core_fused_norm(mixed_qkv, b, a, output_gate, core_attn_out)
            return
        self._tree_rows(binding, mixed_qkv, b, a, core_attn_out)
        actual, norm = metadata.num_actual_tokens, self.norm
        gated_norm(
            core_attn_out[:actual],
            output_gate[:actual],
            norm.weight,
            norm.eps,
            activation=norm.activation,
            norm_before_gate=norm.norm_before_gate,
        )

    def _norms_trees(self, step: VerifyStep) -> bool:
        """Whether the batch is trees alone, and the norm one that `gated_norm` computes: stock keeps what it does not."""
        norm = self.norm
        ours = norm.bias is None and norm.group_size in (None, self.head_v_dim) and norm.activation in ACTIVATIONS
        return step.any_tree and step.all_trees and ours and norm.weight.is_contiguous()

    def forward_cpu(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Stock's forward_cpu goes to a free function that no subclass can override; the projections around it are these."""
        from vllm.model_executor.layers.mamba.ops.cpu.gdn_attention import cpu_gdn_attention_core

        mixed_qkvz, _ = self.in_proj_qkvz(hidden_states)
        ba, _ = self.in_proj_ba(hidden_states)
        qkv_size = (self.key_dim * 2 + self.value_dim) // self.tp_size
        mixed_qkv, z = mixed_qkvz.split([qkv_size, self.value_dim // self.tp_size], dim=-1)
        z = z.reshape(z.size(0), -1, self.head_v_dim)
        b, a = ba.chunk(2, dim=-1)
        out = hidden_states.new_zeros(z.shape)
        self._core(lambda *rows: cpu_gdn_attention_core(*rows, self.prefix), mixed_qkv, b, a, out)
        return self._output_projection(out, z)

    def _metadata(self) -> Any:
        """This layer's metadata of the step; None while memory is profiled."""
        context = get_forward_context().attn_metadata
        return context.get(self.prefix) if isinstance(context, dict) else None

    def _core(self, stock: Core, mixed_qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, out: torch.Tensor) -> None:
        """mixed_qkv [T, dim], b and a [T, HV] -> out [T, HV, V]; trees by our kernels, the rest by `stock`."""
        metadata, binding = self._metadata(), self._binding
        if metadata is None or binding is None or not binding.step.any_tree:
            stock(mixed_qkv, b, a, out)
            return
        if not binding.step.all_trees:
            self._stock_rows(stock, metadata, mixed_qkv, b, a, out)
        self._tree_rows(binding, mixed_qkv, b, a, out)

    def _stock_rows(
        self,
        stock: Core,
        metadata: Any,
        mixed_qkv: torch.Tensor,
        b: torch.Tensor,
        a: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Runs the rows that are no tree as if the batch held nothing else."""
        context, rows = get_forward_context().attn_metadata, metadata.non_spec_token_indx
        part = out.new_zeros(rows.shape[0], *out.shape[1:])
        context[self.prefix] = without_trees(metadata)
        try:
            stock(mixed_qkv.index_select(0, rows), b.index_select(0, rows), a.index_select(0, rows), part)
        finally:
            context[self.prefix] = metadata
        out.index_copy_(0, rows, part)

    def _tree_rows(
        self, binding: TreeBinding, mixed_qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, out: torch.Tensor
    ) -> None:
        step, tokens = binding.step, mixed_qkv.shape[0]
        slots = step.state_slots[binding.group, : step.num_reqs]
        starts = step.query_start_loc[: step.num_reqs + 1]
        inputs = torch.empty_like(mixed_qkv, memory_format=torch.contiguous_format)
        conv_tree(
            mixed_qkv,
            self.window,
            self._conv_weight(),
            self.conv1d.bias,
            slots,
            starts,
            step.rows,
            inputs,
            binding.stash.x,
        )
        key_dim, value_dim = self.key_dim // self.tp_size, self.value_dim // self.tp_size
        q, k, v = inputs.split([key_dim, key_dim, value_dim], dim=-1)
        delta_tree(
            q.view(tokens, -1, self.head_k_dim),
            k.view(tokens, -1, self.head_k_dim),
            v.view(tokens, -1, self.head_v_dim),
            a,
            b,
            self.A_log,
            self.dt_bias,
            self.state,
            slots,
            starts,
            step.rows,
            binding.scratch,
            out,
            binding.stash,
        )

    def _conv_weight(self) -> torch.Tensor:
        """[dim, width]; some CPUs pack the weight in place at load and keep the plain one aside."""
        plain = getattr(self.conv1d, "_cpu_unpacked_conv_weight", None)
        weight: torch.Tensor = self.conv1d.weight if plain is None else plain
        return weight.view(weight.size(0), weight.size(-1))


def without_trees(metadata: Any) -> Any:
    """GDN metadata of a mixed batch, reduced to its rows that are no tree [vllm/v1/attention/backends/gdn_attn.py]."""
    return replace(
        metadata,
        num_spec_decodes=0,
        num_spec_decode_tokens=0,
        num_actual_tokens=metadata.num_prefill_tokens + metadata.num_decode_tokens,
        spec_query_start_loc=None,
        spec_state_indices_tensor=None,
        spec_sequence_masks=None,
        spec_sequence_masks_cpu=None,
        spec_token_indx=None,
        non_spec_token_indx=None,
        num_accepted_tokens=None,
        uniform_spec_sequence_length=None,
    )
