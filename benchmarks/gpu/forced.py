"""Workers whose acceptance is chosen: random weights accept nothing, and then commit and compaction cost nothing either.

For measuring a step only. `force(length)` makes every request accept length - 1 nodes a step on the average (the bonus token
is the other one), `force(0)` lets it come as it comes; both in a loaded engine, by `collective_rpc`. Stock's way is its own
synthetic rejection. In a tree the token sampled at a row becomes a random child's, so that a third of what is accepted stands
off the spine, and everything after the sampler runs as it would; the few launches that choose count against the tree. Trees
are those of a drafter with LAW at every depth: a random drafter's scores are all alike, and its trees one level of siblings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.spec_decode.utils import unconditional_to_conditional_rates
from vllm.v1.worker.gpu_worker import Worker

from benchmarks.gpu.acceptance import scores
from ddtree_ext.core.tree import grow
from ddtree_ext.engine import model_state, speculator
from ddtree_ext.engine.draft_topk import Ranked, Ranking
from ddtree_ext.engine.sampler import TreeSampler
from ddtree_ext.engine.worker import DDTreeWorker

OFF_SPINE = 1 / 3
"""Share of the accepted nodes that is wanted off the spine."""


def law(ranks: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[ranks] float32: log-probabilities of a position's ranks, 0.7 for the first and then halves of what is left."""
    return scores((0.7,))[0, :ranks]


@dataclass(frozen=True)
class Chances:
    """stop: chance that a walk ends at a node with children; sibling: weight of a child that does not stand in the row after
    its parent's, where the one that does has 1."""

    stop: float
    sibling: float


def outcome(parents: tuple[int, ...], chances: Chances) -> tuple[float, float]:
    """Nodes accepted on the average, and the share of them off the spine. parents: [N], the root's is negative."""
    weights = [1.0 if parent == row - 1 else chances.sibling for row, parent in enumerate(parents)]
    below = [sum(w for w, parent in zip(weights, parents, strict=True) if parent == row) for row in range(len(parents))]
    reached, spine = [1.0], [True]
    for row, parent in enumerate(parents[1:], start=1):
        share = weights[row] / below[parent] if below[parent] else 0.0
        reached.append(reached[parent] * (1 - chances.stop) * share)
        spine.append(spine[parent] and parent == row - 1)
    accepted = sum(reached[1:])
    off = sum(chance for chance, on in zip(reached[1:], spine[1:], strict=True) if not on)
    return float(accepted), float(off / accepted) if accepted else 0.0


def chances_for(parents: tuple[int, ...], accepted: float) -> Chances:
    """Those that come nearest to so many accepted nodes, a third of them off the spine."""

    def distance(chances: Chances) -> float:
        mean, off = outcome(parents, chances)
        return abs(mean - accepted) + 3 * abs(off - OFF_SPINE)

    grid = [Chances(stop / 50, 2.0 ** (step / 4)) for stop in range(50) for step in range(-32, 16)]
    return min(grid, key=distance)


def draw(parents: torch.Tensor, local: torch.Tensor, starts: torch.Tensor, chances: Chances) -> torch.Tensor:
    """[rows] int64: of a row that its parent's walk goes on to, the parent; of another the number of rows.

    parents, local, starts: [rows] int64, the row's parent and its own place within its request, and the request's first row.
    """
    weight = torch.where(parents == local - 1, 1.0, chances.sibling)
    # The least of exponential waiting times: each child with the chance of its weight.
    wait = torch.where(parents >= 0, torch.empty_like(weight).exponential_() / weight, torch.inf)
    target = (starts + parents).clamp(min=0)
    first = torch.full_like(wait, torch.inf).scatter_reduce_(0, target, wait, "amin")
    goes_on = torch.rand(weight.shape, device=weight.device) >= chances.stop
    chosen = (parents >= 0) & (wait == first[target]) & goes_on[target]
    return torch.where(chosen, target, parents.shape[0])


class ForcedTreeSampler(TreeSampler):
    """Draws a child for every row in place of the target's token, once it was given chances."""

    chances: Chances | None = None

    def _verify(
        self, logits: torch.Tensor, draft_logits: Any, draft_sampled: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if self.chances is None:
            return super()._verify(logits, draft_logits, draft_sampled, *args, **kwargs)
        chances, sample = self.chances, self.sampler.sample
        starts, slots, local = args[1], args[2], args[5]

        def forced(*inputs: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
            sampled, processed = sample(*inputs, **options)
            rows = torch.arange(sampled.shape[0], device=sampled.device)
            requests = torch.searchsorted(starts[1:].long(), rows, right=True)
            parents = self._step.trees.parents[slots[requests].long(), local.long()].long()
            where = draw(parents, local.long(), starts.long()[requests], chances)
            # Elsewhere any token but a node's: what random weights repeat for ever would be accepted too.
            tokens = torch.randint(processed.shape[-1], (sampled.shape[0] + 1,), device=sampled.device).to(
                sampled.dtype
            )
            tokens[where] = draft_sampled.to(sampled.dtype)
            return tokens[:-1], processed

        self.sampler.sample = forced
        try:
            return super()._verify(logits, draft_logits, draft_sampled, *args, **kwargs)
        finally:
            del self.sampler.sample


class ForcedTree:
    """Mixed into a tree worker."""

    model_runner: Any

    def init_device(self) -> None:
        model_state.TreeSampler = ForcedTreeSampler  # type: ignore[misc]
        ranked_by = speculator.draft_topk

        def by_law(model: Any, rows: int, vocabulary: int, k: int, device: torch.device) -> Ranking:
            ranked = ranked_by(model, rows, vocabulary, k, device)
            scores = torch.from_numpy(law(k)).to(device)  # now: a graph's capture takes no copy

            def scored(hidden: torch.Tensor) -> Ranked:
                logprobs, ids = ranked(hidden)
                logprobs.copy_(scores)
                return logprobs, ids

            return scored

        speculator.draft_topk = by_law
        super().init_device()  # type: ignore[misc]

    def force(self, length: float) -> tuple[float, float]:
        """Nodes that will be accepted on the average, and their share off the spine."""
        runner = self.model_runner
        runner.rejection_sampler.chances = None
        if not length:
            return 0.0, 0.0
        drafter = runner.speculator
        logprobs = np.tile(law(drafter.topk), (drafter.num_speculative_steps, 1))
        ids = np.arange(logprobs.size, dtype=np.int64).reshape(logprobs.shape)
        parents = grow(logprobs, ids, drafter.budget).parents
        runner.rejection_sampler.chances = chances_for(parents, length - 1)
        return outcome(parents, runner.rejection_sampler.chances)


class ForcedStock:
    """Mixed into a stock worker; its chains accept by vLLM's synthetic rejection while a length is given."""

    model_runner: Any
    vllm_config: Any
    device: torch.device

    def force(self, length: float) -> tuple[float, float]:
        """Tokens that will be accepted on the average; none stand off a chain."""
        sampler = self.model_runner.rejection_sampler
        sampler.synthetic_conditional_rates = None
        if length:
            rates = self.vllm_config.speculative_config._resolve_synthetic_acceptance_rates(
                sampler.num_speculative_steps, None, length
            )
            conditional = unconditional_to_conditional_rates(rates)
            sampler.synthetic_conditional_rates = torch.tensor(conditional, dtype=torch.float32, device=self.device)
        return max(length - 1, 0.0), 0.0


class ForcedDDTreeWorker(ForcedTree, DDTreeWorker):
    """The tree's worker on CUDA."""


class ForcedWorker(ForcedStock, Worker):  # type: ignore[misc]
    """Stock's on CUDA."""
