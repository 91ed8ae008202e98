"""Attention metadata of many KV cache groups: one is built, its kin take over all but block table and slots.

vLLM cuts layers of one kind into groups of equal size, and where a drafter brings a single layer of its own kind that size is one:
the 27B's target then has 64 groups. Building metadata anew for each of them takes the host longer than a step of one request may
take on a fast GPU. Stock does the same for recurrent layers alone (vllm/v1/worker/gpu/attn_utils.py, build_attn_metadata).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Kin:
    """An AttentionGroup of KV cache group `group`; `like` is a layer of the one that is built for it."""

    group: int
    member: Any
    like: str


@dataclass(frozen=True)
class Families:
    """The AttentionGroups of every KV cache group: those to build, as vLLM's runner holds them, and their kin."""

    source: Sequence[Sequence[Any]]
    built: list[list[Any]]
    kin: tuple[Kin, ...]

    @classmethod
    def of(cls, attn_groups: Sequence[Sequence[Any]]) -> Families:
        """Kin have one cache specification and one kind of builder, which has to know how to change a block table."""
        built: list[list[Any]] = []
        kin: list[Kin] = []
        first: dict[tuple[Any, type], str] = {}
        for index, members in enumerate(attn_groups):
            built.append([])
            for member in members:
                builder = member.get_metadata_builder(0)
                family = (member.kv_cache_spec, type(builder))
                if not builder.supports_update_block_table or member.kernel_block_size is not None:
                    built[-1].append(member)
                elif family in first:
                    kin.append(Kin(index, member, first[family]))
                else:
                    first[family] = member.layer_names[0]
                    built[-1].append(member)
        return cls(attn_groups, built, tuple(kin))

    def complete(
        self, metadata: dict[str, Any], block_tables: Sequence[torch.Tensor], slot_mappings: torch.Tensor
    ) -> None:
        """Adds the kin's layers to the metadata of those that were built; both tables are by KV cache group."""
        for kin in self.kin:
            builder = kin.member.get_metadata_builder(0)
            own = builder.update_block_table(metadata[kin.like], block_tables[kin.group], slot_mappings[kin.group])
            metadata.update(dict.fromkeys(kin.member.layer_names, own))
