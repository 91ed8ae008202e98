"""What the trees did, counted on the device: the decode loop neither copies to the host nor waits for it."""

from __future__ import annotations

import torch

from ddtree_ext.engine.step import VerifyStep


class StepCounters:
    """Totals since start, one int64 tensor: [steps with a tree, nodes verified, nodes accepted off the spine, histogram].

    The histogram has width + 1 bins: request steps that accepted 0, 1, ... width nodes.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self.width = width
        self.totals = torch.zeros(3 + width + 1, dtype=torch.int64, device=device)

    def add(self, step: VerifyStep, num_sampled: torch.Tensor) -> None:
        """Adds one step; num_sampled [R] int32 as the sampler returned it."""
        reqs = step.num_reqs
        nodes = (step.rows.tree_len[:reqs] - 1).clamp(min=0).long()
        live = (nodes > 0) & (num_sampled[:reqs] > 0)
        accepted = (num_sampled[:reqs].long() - 1).clamp(0, self.width)
        path = step.path[:reqs]
        depth = torch.arange(path.shape[1], dtype=path.dtype, device=path.device)
        off_spine = ((path > depth).sum(dim=1) * live).sum()
        self.totals[:3] += torch.stack([live.sum(), (nodes * live).sum(), off_spine])
        self.totals[3:].index_add_(0, accepted, live.long())
