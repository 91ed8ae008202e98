"""One verify step, as attention, Gated DeltaNet, sampler and drafter see it: static device buffers and a few host facts.

CUDA graphs record addresses, so every tensor here is allocated once; a step overwrites contents. The host facts say which
kernels an eager step has to run at all; a captured graph never asks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddtree_ext.core.buffers import TreeBuffers, TreeRows


@dataclass
class VerifyStep:
    """Trees by request slot, and the batch that verifies them. S slots, T tokens, R <= S requests, N = budget + 1 rows.

    budgets       [S] int32   nodes that a request's next tree may have: 0 when it asked for none
    is_tree       [S] int32   by batch position: 1 when the request's rows are a tree (decode), 0 for prefill rows and padding
    path          [S, N] int32  by batch position: rows accepted, path[0] = 0 the root; -1 beyond
    state_slots   [G, S] int32  by batch position: recurrent-state slot in each of the G cache groups that hold states
    query_start_loc, seq_lens   views of the runner's own buffers, bound by `begin`
    any_tree, all_trees         host facts of the batch at hand
    """

    trees: TreeBuffers
    rows: TreeRows
    budgets: torch.Tensor
    is_tree: torch.Tensor
    path: torch.Tensor
    state_slots: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int = 0
    any_tree: bool = False
    all_trees: bool = False

    @classmethod
    def allocate(cls, slots: int, max_tokens: int, budget: int, device: torch.device) -> VerifyStep:
        """Buffers for `slots` concurrent requests and batches of at most `max_tokens` flat tokens."""
        path = torch.full((slots, budget + 1), -1, dtype=torch.int32, device=device)
        path[:, 0] = 0
        return cls(
            trees=TreeBuffers.allocate(slots, budget, device),
            rows=TreeRows.allocate(slots, max_tokens, device),
            budgets=torch.full((slots,), budget, dtype=torch.int32, device=device),
            is_tree=torch.zeros(slots, dtype=torch.int32, device=device),
            path=path,
            state_slots=torch.zeros(0, slots, dtype=torch.int32, device=device),
            query_start_loc=torch.zeros(slots + 1, dtype=torch.int32, device=device),
            seq_lens=torch.zeros(slots, dtype=torch.int32, device=device),
        )
