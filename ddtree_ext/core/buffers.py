"""The device tensors that hold draft trees, and the words that describe their rows.

A tree of at most B <= 63 nodes has N = B + 1 rows: the root (the last committed token, not counted in B) is row 0, and
node i is row i + 1. Every parent stands before its children, so any prefix of the rows is a tree too: cutting one costs
nothing. An ancestor word has bit j set when row j is the row itself or an ancestor of it; row 63 uses the sign bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MAX_BUDGET = 63
"""The largest node budget: root and nodes share one 64-bit ancestor word."""

ROOT = -1
"""Parent of the root."""

DEAD = -2
"""Parent of a row that holds no node."""


def own_bits(rows: int, device: torch.device | str) -> torch.Tensor:
    """Ancestor words of `rows` rows without ancestors: [rows] int64, bit i set in word i."""
    return torch.ones(rows, dtype=torch.int64, device=device) << torch.arange(rows, dtype=torch.int64, device=device)


@dataclass(frozen=True)
class TreeBuffers:
    """Trees by request-state slot; they outlive a step. S slots, B nodes, N = B + 1 rows.

    tokens     [S, B] int64  node tokens; row i + 1 of the tree holds tokens[:, i]; dead nodes hold 0
    parents    [S, N] int32  row index of the parent, below the own index; root: ROOT; dead rows: DEAD
    depths     [S, N] int32  root 0; dead rows 0
    ancestors  [S, N] int64  ancestor words; dead rows: their own bit only
    num_nodes  [S]    int32  live nodes, the root not counted; 0: no tree, only the root's row
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    ancestors: torch.Tensor
    num_nodes: torch.Tensor

    @classmethod
    def allocate(cls, slots: int, budget: int, device: torch.device | str) -> TreeBuffers:
        """Buffers for `slots` requests of at most `budget` nodes each, all without a tree.

        Raises ValueError for a budget outside 1..63 or fewer than one slot.
        """
        if not 1 <= budget <= MAX_BUDGET:
            raise ValueError(f"node budget {budget} is outside 1..{MAX_BUDGET}: one 64-bit word names all rows")
        if slots < 1:
            raise ValueError(f"{slots} request slots: at least one is needed")
        rows = budget + 1
        parents = torch.full((slots, rows), DEAD, dtype=torch.int32, device=device)
        parents[:, 0] = ROOT
        return cls(
            tokens=torch.zeros(slots, budget, dtype=torch.int64, device=device),
            parents=parents,
            depths=torch.zeros(slots, rows, dtype=torch.int32, device=device),
            ancestors=own_bits(rows, device).expand(slots, rows).contiguous(),
            num_nodes=torch.zeros(slots, dtype=torch.int32, device=device),
        )

    @property
    def slots(self) -> int:
        """Concurrent requests."""
        return int(self.tokens.shape[0])

    @property
    def budget(self) -> int:
        """Nodes of the largest tree, the root not counted."""
        return int(self.tokens.shape[1])

    @property
    def rows(self) -> int:
        """Rows of the largest tree: its nodes and the root."""
        return self.budget + 1


@dataclass(frozen=True)
class TreeRows:
    """The rows of one step's flat batch; static addresses, overwritten every step. R requests, T tokens.

    positions  [T] int64  base + depth for a tree's rows, the flat position for all others (RoPE positions)
    parents    [T] int32  local row index of the parent; ROOT and DEAD as in TreeBuffers; rows of no tree: i - 1
    ancestors  [T] int64  ancestor words; rows of requests without a tree: 0
    tree_len   [R] int32  1 + live nodes, cut to the request's query length; 0 for a request whose rows are no tree
    """

    positions: torch.Tensor
    parents: torch.Tensor
    ancestors: torch.Tensor
    tree_len: torch.Tensor

    @classmethod
    def allocate(cls, max_reqs: int, max_tokens: int, device: torch.device | str) -> TreeRows:
        """Rows for batches of at most `max_reqs` requests and `max_tokens` flat tokens, none of them a tree yet."""
        return cls(
            positions=torch.zeros(max_tokens, dtype=torch.int64, device=device),
            parents=torch.full((max_tokens,), ROOT, dtype=torch.int32, device=device),
            ancestors=torch.zeros(max_tokens, dtype=torch.int64, device=device),
            tree_len=torch.zeros(max_reqs, dtype=torch.int32, device=device),
        )
