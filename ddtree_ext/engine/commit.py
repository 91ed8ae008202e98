"""Commits of an accepted path, one launch for all layers: attention KV, and Gated DeltaNet states with their windows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddtree_ext.engine.step import VerifyStep
from ddtree_ext.kernels.block_tables import BlockTables
from ddtree_ext.kernels.compact import CompactTable, compact_kv
from ddtree_ext.kernels.gdn_commit import CommitTable, commit_tree


@dataclass(frozen=True)
class KvCommit:
    """The target's attention layers, in one table for each form of cache."""

    tables: tuple[CompactTable, ...]

    def run(self, step: VerifyStep, block_tables: BlockTables, consumed: torch.Tensor) -> None:
        """Moves the accepted rows' K and V to the slots that follow the base; `consumed` [R] int32 rows each."""
        reqs = step.num_reqs
        for table in self.tables:
            compact_kv(
                table,
                block_tables,
                step.seq_lens[:reqs],
                step.query_start_loc[: reqs + 1],
                step.is_tree[:reqs],
                step.path[:reqs],
                consumed,
            )


@dataclass(frozen=True)
class StateCommit:
    """All Gated DeltaNet layers; `groups` [G] int32 are the KV cache groups that hold their state slots, in the order of
    step.state_slots."""

    table: CommitTable
    groups: torch.Tensor

    def run(self, step: VerifyStep, consumed: torch.Tensor) -> None:
        """Replays the accepted rows into the committed states and windows; `consumed` [R] int32 rows each."""
        reqs = step.num_reqs
        commit_tree(self.table, step.state_slots[:, :reqs], consumed, step.path[:reqs], step.is_tree[:reqs])
