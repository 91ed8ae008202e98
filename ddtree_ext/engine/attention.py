"""Attention of the verify step: tree rows by our kernel, all other rows by the backend underneath.

The two concrete backends (cpu_attention.py, cuda_attention.py) differ in what is underneath and share KV layout and mix-in.
"""

from __future__ import annotations

from typing import Any

import torch

from ddtree_ext.engine.activation import require_activated
from ddtree_ext.engine.options import OptionError
from ddtree_ext.engine.step import VerifyStep
from ddtree_ext.kernels.attention import tree_attention
from ddtree_ext.kernels.attention_scratch import AttentionScratch


class TreeAttentionMixin:
    """Mixed into the AttentionImpl underneath; `bind` gives it the step once the caches exist."""

    head_size: int
    num_heads: int
    num_kv_heads: int
    scale: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        require_activated()
        super().__init__(*args, **kwargs)
        self._step: VerifyStep | None = None
        self._scratch: AttentionScratch | None = None
        refuse_attention(self)

    def bind(self, step: VerifyStep, scratch: AttentionScratch) -> None:
        """From here on, tree rows of `step` are attended by their ancestors only. `scratch` is shared by all layers."""
        self._step, self._scratch = step, scratch

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """query [T, Hq, D], kv_cache [blocks, Hkv, block_size, 2 D] in logical order; writes and returns output."""
        step = self._step
        if attn_metadata is None or step is None or not step.any_tree:
            result: torch.Tensor = super().forward(  # type: ignore[misc]
                layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs
            )
            return result
        if not step.all_trees:  # prefill rows beside trees: everything causally first, then the trees' rows over it
            super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)  # type: ignore[misc]
        assert self._scratch is not None
        requests, tokens = attn_metadata.seq_lens.shape[0], attn_metadata.num_actual_tokens
        k_cache, v_cache = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        tree_attention(
            query[:tokens].view(tokens, self.num_heads, self.head_size),
            k_cache,
            v_cache,
            attn_metadata.block_table,
            attn_metadata.seq_lens,
            attn_metadata.query_start_loc[: requests + 1],
            step.rows,
            output[:tokens].view(tokens, self.num_heads, self.head_size),
            self.scale,
            self._scratch,
        )
        return output


def refuse_attention(impl: Any) -> None:
    """Raises OptionError for attention variants whose mask or scores the tree kernel does not compute."""
    window = impl.sliding_window
    if window not in (None, -1, (-1, -1)):
        raise OptionError(f"ddtree does not support targets with sliding-window attention (window {window})")
    for name in ("alibi_slopes", "sinks"):
        if getattr(impl, name, None) is not None:
            raise OptionError(f"ddtree does not support targets whose attention has {name.replace('_', ' ')}")
    if getattr(impl, "logits_soft_cap", 0):
        raise OptionError("ddtree does not support targets with a soft cap on attention logits")
