"""What the trees did, counted on the device: the decode loop neither copies to the host nor waits for it."""

from __future__ import annotations

import torch

from ddtree_ext.engine.options import MAX_BUDGET
from ddtree_ext.engine.step import VerifyStep
from ddtree_ext.kernels.count import count_trees

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
        self.totals = torch.zeros(SUMS + NODES + width + 1, dtype=torch.int64, device=device)

    def add(self, step: VerifyStep, num_sampled: torch.Tensor) -> None:
        """Adds one step; num_sampled [R] int32 as the sampler returned it."""
        reqs = step.num_reqs
        count_trees(step.rows.tree_len[:reqs], num_sampled[:reqs], step.path[:reqs], self.totals, SUMS, NODES)
