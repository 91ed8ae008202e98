"""The target's layers that take part in a verify step: found once, given their buffers, bound to the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ddtree_ext.engine.attention import TreeAttentionMixin
from ddtree_ext.engine.commit import KvCommit, StateCommit
from ddtree_ext.engine.gdn_layer import TreeBinding, TreeGatedDeltaNet
from ddtree_ext.engine.step import VerifyStep
from ddtree_ext.kernels.attention_scratch import AttentionScratch
from ddtree_ext.kernels.compact import CompactTable, GroupedCache
from ddtree_ext.kernels.gdn_commit import CommitTable, GdnLayer
from ddtree_ext.kernels.gdn_stash import GdnScratch, GdnShape, GdnStash


@dataclass(frozen=True)
class TreeLayers:
    """Attention and Gated DeltaNet layers of the target by name, and the GDN buffers, allocated before memory is profiled.

    stashes   one per GDN layer: what a commit replays
    scratch   of the layer that is running; shared by all layers
    """

    attention: dict[str, Any]
    states: dict[str, TreeGatedDeltaNet]
    stashes: dict[str, GdnStash]
    scratch: GdnScratch | None

    @classmethod
    def of(cls, vllm_config: Any, step: VerifyStep) -> TreeLayers:
        """Collects the layers that were built with our attention backend or as our GDN layer; the drafter has neither."""
        layers = vllm_config.compilation_config.static_forward_context
        attention = {
            name: layer
            for name, layer in layers.items()
            if isinstance(getattr(layer, "impl", None), TreeAttentionMixin)
        }
        states = {name: layer for name, layer in layers.items() if isinstance(layer, TreeGatedDeltaNet)}
        slots, rows = step.path.shape
        device, dtype = step.path.device, vllm_config.model_config.dtype
        shapes = {name: gdn_shape(layer) for name, layer in states.items()}
        stashes = {name: GdnStash.allocate(slots, rows, shape, dtype, device) for name, shape in shapes.items()}
        scratch = GdnScratch.allocate(slots, rows, next(iter(shapes.values())), device) if shapes else None
        return cls(attention, states, stashes, scratch)

    def bind_attention(self, step: VerifyStep, kv_cache_config: Any) -> KvCommit:
        """Gives every attention layer the step; returns the commit of their caches."""
        scratch = None
        for layer in self.attention.values():
            impl = layer.impl
            if scratch is None:
                scratch = AttentionScratch.allocate(
                    step.path.shape[0],
                    step.path.shape[1],
                    impl.num_heads,
                    impl.num_kv_heads,
                    impl.head_size,
                    step.path.device,
                    itemsize=layer.kv_cache.element_size(),
                )
            impl.bind(step, scratch)
        forms: dict[tuple[object, ...], list[GroupedCache]] = {}
        for index, group in enumerate(kv_cache_config.kv_cache_groups):
            for name in group.layer_names:
                if name in self.attention:
                    layer = self.attention[name]
                    k, v = layer.kv_cache.transpose(1, 2).split(layer.impl.head_size, dim=-1)
                    forms.setdefault((k.shape[1:], k.dtype), []).append(GroupedCache(index, k, v))
        return KvCommit(tuple(CompactTable.of(caches) for caches in forms.values()))

    def bind_states(self, step: VerifyStep, kv_cache_config: Any) -> StateCommit | None:
        """Gives every GDN layer step, stash and scratch; returns the commit of their states, or None without such layers."""
        if not self.states or self.scratch is None:
            return None
        groups: list[int] = []
        layers: list[GdnLayer] = []
        for index, group in enumerate(kv_cache_config.kv_cache_groups):
            names = [name for name in group.layer_names if name in self.states]
            for name in names:
                layer, stash = self.states[name], self.stashes[name]
                layer.bind(TreeBinding(step, stash, self.scratch, len(groups)))
                layers.append(GdnLayer(layer.state, layer.window, stash, len(groups)))
            if names:
                groups.append(index)
        step.state_slots = step.state_slots.new_zeros(len(groups), step.path.shape[0])
        width = next(iter(self.states.values())).conv_kernel_size
        rows = torch.tensor(groups, dtype=torch.int32, device=step.path.device)
        return StateCommit(CommitTable.of(layers, width), rows)


def gdn_shape(layer: TreeGatedDeltaNet) -> GdnShape:
    """This rank's part of a layer."""
    tp = layer.tp_size
    return GdnShape(layer.num_k_heads // tp, layer.num_v_heads // tp, layer.head_k_dim, layer.head_v_dim)
