"""What the kernels of a verify step are measured on: a batch of trees whose accepted path lies beside the spine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from benchmarks.gpu.dims import Dims
from benchmarks.gpu.roofline import Step
from ddtree_ext.core.buffers import TreeBuffers, TreeRows
from ddtree_ext.kernels.gdn_stash import GdnShape
from ddtree_ext.kernels.gdn_tiles import GdnTiles
from ddtree_ext.kernels.rows import expand_rows

ATTENTION = "attention_"
"""What the names of changed attention tiles begin with."""
BLOCK = 784
"""Tokens of a KV cache block: as many as take the memory of a layer's recurrent state."""


def beside_the_spine(rows: int) -> tuple[list[int], list[int]]:
    """Parents and depths of a tree whose row 1 is a leaf, and rows 2, 3, ... a chain below the root.

    So every accepted row of the chain has to be moved by one, whatever the length of the path.
    """
    parents = [-1, 0, 0, *range(2, rows - 1)][:rows]
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return parents, depths


@dataclass(frozen=True)
class Inputs:
    """The batch of a step, R requests of N rows each, on a device; random tensors of a layer are drawn when asked for."""

    dims: Dims
    step: Step
    device: str
    changed: Mapping[str, int] = field(default_factory=dict)  # of GdnTiles and, as attention_*, of attention's tiles

    @cached_property
    def tiles(self) -> GdnTiles:
        changed = {name: size for name, size in self.changed.items() if not name.startswith(ATTENTION)}
        return replace(GdnTiles.of(torch.device(self.device), self.shape, self.step.rows), **changed)

    @cached_property
    def shape(self) -> GdnShape:
        ranks = self.step.ranks
        return GdnShape(
            self.dims.gdn_k_heads // ranks, self.dims.gdn_v_heads // ranks, self.dims.gdn_dim, self.dims.gdn_dim
        )

    @property
    def tokens(self) -> int:
        return self.step.batch * self.step.rows

    @property
    def path_rows(self) -> int:
        return round(self.step.path)

    def random(self, *size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*size, device=self.device, dtype=dtype)

    def ints(self, values: object, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, device=self.device, dtype=dtype)

    @cached_property
    def trees(self) -> TreeBuffers:
        parents, depths = beside_the_spine(self.step.rows)
        trees = TreeBuffers.allocate(self.step.batch, self.step.nodes, self.device)
        trees.parents[:] = self.ints(parents)
        trees.depths[:] = self.ints(depths)
        for row, parent in list(enumerate(parents))[1:]:
            trees.ancestors[:, row] |= trees.ancestors[:, parent]
        trees.tokens[:] = torch.arange(1, self.step.nodes + 1, device=self.device)
        trees.num_nodes[:] = self.step.nodes
        return trees

    @cached_property
    def slots(self) -> torch.Tensor:
        return torch.arange(self.step.batch, device=self.device)

    @cached_property
    def state_slots(self) -> torch.Tensor:
        """Slot 0 is the null block."""
        return torch.arange(1, self.step.batch + 1, device=self.device, dtype=torch.int32)

    @cached_property
    def starts(self) -> torch.Tensor:
        return torch.arange(self.step.batch + 1, device=self.device, dtype=torch.int32) * self.step.rows

    @cached_property
    def seq_lens(self) -> torch.Tensor:
        return self.ints([self.step.context + self.step.rows] * self.step.batch)

    @cached_property
    def is_tree(self) -> torch.Tensor:
        return self.ints([1] * self.step.batch)

    @cached_property
    def consumed(self) -> torch.Tensor:
        return self.ints([self.path_rows] * self.step.batch)

    @cached_property
    def path(self) -> torch.Tensor:
        accepted = [0, *range(2, self.path_rows + 1)]
        return self.ints([accepted + [-1] * (self.step.rows - len(accepted))] * self.step.batch)

    @cached_property
    def rows(self) -> TreeRows:
        rows = TreeRows.allocate(self.step.batch, self.tokens, self.device)
        path = torch.empty_like(self.path)
        expand_rows(self.slots, self.starts, self.seq_lens, self.is_tree, path, self.trees, rows)
        return rows
