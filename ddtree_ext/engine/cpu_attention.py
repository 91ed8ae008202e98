"""`--attention-backend CUSTOM` on a CPU: Triton's interpreter runs the tree's kernel, torch the rows of prompts.

A stand-in for FlashAttention under the same glue: for tests, not for speed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend, TritonAttentionImpl

from ddtree_ext.engine.attention import TreeAttentionMixin


class TorchPromptAttention(TritonAttentionImpl):  # type: ignore[misc]
    """Causal attention over the paged cache, request by request; stock's launchers ask for a CUDA device."""

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query [T, Hq, D]; kv_cache [blocks, Hkv, block_size, 2 D] in logical order; writes and returns output."""
        if attn_metadata is None:
            return output.fill_(0)
        starts, lengths = attn_metadata.query_start_loc.tolist(), attn_metadata.seq_lens.tolist()
        heads = output.view(output.shape[0], self.num_heads, self.head_size)
        for request, length in enumerate(lengths):
            first, end = starts[request], starts[request + 1]
            if end == first:
                continue
            position = torch.arange(length)
            block = attn_metadata.block_table[request, position // kv_cache.shape[2]].long()
            keys, values = kv_cache[block, :, position % kv_cache.shape[2]].split(self.head_size, dim=-1)
            visible = position[None] <= torch.arange(length - (end - first), length)[:, None]
            heads[first:end] = scaled_dot_product_attention(
                query[first:end].view(end - first, self.num_heads, self.head_size).transpose(0, 1),
                keys.transpose(0, 1),
                values.transpose(0, 1),
                attn_mask=visible,
                scale=self.scale,
                enable_gqa=True,
            ).transpose(0, 1)
        return output

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """key, value [T, Hkv, D] to their slots; negative slots are padding."""
        rows = (slot_mapping >= 0).nonzero().flatten()
        slots, block_size = slot_mapping[rows], kv_cache.shape[2]
        caches = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        for cache, new in zip(caches, (key, value), strict=True):
            cache[slots // block_size, slots % block_size] = new[rows].to(cache.dtype)


class CPUTreeAttentionImpl(TreeAttentionMixin, TorchPromptAttention):
    """Rows of prompts by torch, rows of trees by our kernel."""


class CPUTreeAttentionBackend(TritonAttentionBackend):  # type: ignore[misc]
    """Triton's KV layout, not CPU_ATTN's packed one, so that kernels and glue are those of the GPU."""

    @staticmethod
    def get_name() -> str:
        """What --attention-backend calls it: vLLM's one name for backends from outside."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[CPUTreeAttentionImpl]:
        """One is made for each attention layer; it refuses variants that the tree's kernel does not compute."""
        return CPUTreeAttentionImpl
