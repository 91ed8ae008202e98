"""Gated DeltaNet metadata of a step: stock's, but the groups of a batch of trees alone share the first group's.

Stock copies every group's state indices into buffers of its own, each step (vllm/v1/attention/backends/gdn_attn.py,
update_block_table); a batch of trees reads VerifyStep.state_slots instead, and groups are many.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.gdn_attn import GDNAttentionBackend, GDNAttentionMetadataBuilder


class TreeGDNMetadataBuilder(GDNAttentionMetadataBuilder):  # type: ignore[misc]
    """Stock's builder; `update_block_table` answers with what it was given where no row needs more."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # Stock names its own class alone here, as builders of other layers keep more by group than block tables.
        self.supports_update_block_table = True
        if device.type == "cuda":
            self.mamba_aligned_state_indices = None

    def update_block_table(self, metadata: Any, blk_table: torch.Tensor, slot_mapping: torch.Tensor) -> Any:
        """`metadata` itself for a batch of trees alone; else a copy with the slots of `blk_table` [R, blocks] int32."""
        if metadata.num_spec_decodes and not metadata.num_prefills and not metadata.num_decodes:
            return metadata
        return super().update_block_table(metadata, blk_table, slot_mapping)


class TreeGDNBackend(GDNAttentionBackend):  # type: ignore[misc]
    """Stock's name and kind, with that builder."""

    @staticmethod
    def get_builder_cls() -> type[TreeGDNMetadataBuilder]:
        """Asked once for each cache group, as its layers' metadata is set up."""
        return TreeGDNMetadataBuilder
