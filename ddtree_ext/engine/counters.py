"""What the trees did, counted on the device: the decode loop neither copies to the host nor waits for it."""

from __future__ import annotations

import torch

from ddtree_ext.engine.options import MAX_BUDGET
from ddtree_ext.engine.step import VerifyStep

SUMS = 3
NODES = MAX_BUDGET + 1
"""Places for the nodes of the largest tree; the first is nobody's, as the root is not counted."""


class StepCounters:
    """Totals since start, one int64 tensor: [steps with a tree, nodes verified, nodes accepted off the spine, by node, histogram].

    By node: request steps that accepted the i-th node of their tree, i = 0 ... 63. Nodes are in the order in which they were
    taken into the tree, so the first b counts are what a budget of b would have accepted of the same steps. The histogram has
    width + 1 bins: request steps that accepted 0, 1, ... width nodes.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self.width = width
        self.totals = torch.zeros(SUMS + NODES + width + 1, dtype=torch.int64, device=device)
        self._one = torch.ones(1, dtype=torch.int64, device=device)

    def add(self, step: VerifyStep, num_sampled: torch.Tensor) -> None:
        """Adds one step; num_sampled [R] int32 as the sampler returned it."""
        reqs = step.num_reqs
        nodes = (step.rows.tree_len[:reqs] - 1).clamp(min=0).long()
        live = (nodes > 0) & (num_sampled[:reqs] > 0)
        accepted = (num_sampled[:reqs].long() - 1).clamp(0, self.width)
        path = step.path[:reqs]
        depth = torch.arange(path.shape[1], dtype=path.dtype, device=path.device)
        off_spine = ((path > depth).sum(dim=1) * live).sum()
        self.totals[:SUMS] += torch.stack([live.sum(), (nodes * live).sum(), off_spine])
        row = (path * live[:, None]).clamp(min=0).flatten()  # what is no accepted node is nobody's
        self.totals[SUMS : SUMS + NODES].index_add_(0, row, self._one.expand(row.shape[0]))
        self.totals[SUMS + NODES :].index_add_(0, accepted, live.long())
