"""Commits of an accepted path, one launch for all layers: attention KV, and Gated DeltaNet states with their windows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddtree_ext.engine.step import VerifyStep
from ddtree_ext.kernels.compact import CompactTable, compact_kv
from ddtree_ext.kernels.gdn_commit import CommitTable, commit_tree


@dataclass(frozen=True)
class KvCommit:
    """The target's attention layers, by KV cache group: (group id, table of their caches)."""

    groups: tuple[tuple[int, CompactTable], ...]

    def run(self, step: VerifyStep, block_tables: tuple[torch.Tensor, ...], consumed: torch.Tensor) -> None:
        """Moves the accepted rows' K and V to the slots that follow the base; `consumed` [R] int32 rows each."""
        reqs = step.num_reqs
        for group, table in self.groups:
            compact_kv(
                table,
                block_tables[group][:reqs],
                step.seq_lens[:reqs],
                step.query_start_loc[: reqs + 1],
                step.is_tree[:reqs],
                step.path[:reqs],
                consumed,
            )


@dataclass(frozen=True)
class StateCommit:
    """All Gated DeltaNet layers; `groups` are the KV cache groups that hold their state slots, in the order of step.state_slots."""

    table: CommitTable
    groups: tuple[int, ...]

    def run(self, step: VerifyStep, consumed: torch.Tensor) -> None:
        """Replays the accepted rows into the committed states and windows; `consumed` [R] int32 rows each."""
        reqs = step.num_reqs
        commit_tree(self.table, step.state_slots[:, :reqs], consumed, step.path[:reqs], step.is_tree[:reqs])
