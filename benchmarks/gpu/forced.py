"""A tree worker whose walk is forced: random weights accept nothing, and then commit and compaction cost nothing either.

For measuring a step only: what is sampled is replaced by the token of a random child, so the path's mean length and its share
off the spine are chosen, and everything after the sampler runs as it would. The few launches that choose count against the tree.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from ddtree_ext.engine import model_state
from ddtree_ext.engine.sampler import TreeSampler
from ddtree_ext.engine.worker import DDTreeWorker

STOP, SIBLING = "DDTREE_FORCED_STOP", "DDTREE_FORCED_SIBLING"
"""Chance to stop at a node, and weight of a sibling against the spine's child (1: alike)."""


class ForcedTreeSampler(TreeSampler):
    """Draws a child for every row in place of the target's token."""

    def _verify(
        self, logits: torch.Tensor, draft_logits: Any, draft_sampled: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        sample = self.sampler.sample
        starts, slots, local = args[1], args[2], args[5]

        def forced(*inputs: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
            sampled, processed = sample(*inputs, **options)
            rows = torch.arange(sampled.shape[0], device=sampled.device)
            requests = torch.searchsorted(starts[1:].long(), rows, right=True)
            parents = self._step.trees.parents[slots[requests].long(), local.long()].long()
            wish = torch.rand(rows.shape, device=rows.device) * torch.where(
                parents == local.long() - 1, 1.0, float(os.environ.get(SIBLING, "1"))
            )
            has_parent = parents >= 0
            target = (starts.long()[requests] + parents).clamp(min=0)
            best = torch.zeros_like(wish).scatter_reduce_(0, target, wish * has_parent, "amax")
            chosen = has_parent & (wish == best[target])
            goes_on = torch.rand(rows.shape, device=rows.device) >= float(os.environ.get(STOP, "0.15"))
            nowhere = rows.shape[0]
            where = torch.where(chosen & goes_on, target, nowhere)
            tokens = torch.cat([sampled, sampled[:1]]).to(draft_sampled.dtype)
            tokens[where] = draft_sampled
            return tokens[:-1].to(sampled.dtype), processed

        self.sampler.sample = forced
        try:
            return super()._verify(logits, draft_logits, draft_sampled, *args, **kwargs)
        finally:
            del self.sampler.sample


class ForcedDDTreeWorker(DDTreeWorker):
    """The tree's worker with that sampler."""

    def _make_model_runner(self) -> Any:
        model_state.TreeSampler = ForcedTreeSampler  # type: ignore[misc]
        return super()._make_model_runner()
