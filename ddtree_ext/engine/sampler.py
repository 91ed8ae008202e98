"""Sampling of a tree's rows: one draw per row from the target's processed distribution, then a walk.

Lossless for any tree that was built without knowing the draws: the token at a row is sampled exactly as plain decoding would
sample it there, and following the child that holds it only saves the next forward. The noise is keyed by (seed, position)
[vllm/v1/worker/gpu/sample/gumbel.py], and a row's position is base + depth: a seeded request repeats plain decoding's draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from ddtree_ext.engine.step import VerifyStep
from ddtree_ext.kernels.walk import walk_trees


class TreeSampler(RejectionSampler):  # type: ignore[misc]
    """Stands where vLLM's rejection sampler stands; its chunking, penalties, logprobs and bookkeeping stay in use."""

    def __init__(self, sampler: Any, spec_config: Any, device: torch.device, step: VerifyStep) -> None:
        super().__init__(sampler, spec_config, device)
        self._step = step
        self._first_request, self._first_row = 0, 0
        self._path = step.path
        self._positions = step.rows.positions

    def __call__(
        self,
        logits: torch.Tensor,
        input_batch: Any,
        draft_logits: torch.Tensor | None = None,
        invalid_drafts: torch.Tensor | None = None,
    ) -> SamplerOutput:
        self._first_request, self._first_row = 0, 0
        self._positions = self._step.rows.positions[input_batch.logits_indices]
        return super().__call__(logits, input_batch, draft_logits, invalid_drafts)

    def _verify(
        self,
        logits: torch.Tensor,
        draft_logits: torch.Tensor | None,
        draft_sampled: torch.Tensor,
        pos: torch.Tensor,
        cu_num_logits: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: np.ndarray[Any, Any],
        expanded_idx_mapping: torch.Tensor,
        expanded_local_pos: torch.Tensor,
        seq_lens_upper_bound_np: np.ndarray[Any, Any],
        verify_draft_sampled: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One chunk of whole requests: logits [L, vocabulary] -> (processed logits, sampled [R, N], num_sampled [R]).

        `draft_sampled` [L] holds each row's own token; in `verify_draft_sampled` those that may not be accepted (grammar,
        placeholders of a prompt's tail) are -1.
        """
        trees, num_rows = self._step.trees, logits.shape[0]
        positions = self._positions[self._first_row : self._first_row + num_rows]
        self._first_row += num_rows
        sampled_rows, processed = self.sampler.sample(
            logits,
            expanded_idx_mapping,
            idx_mapping,
            idx_mapping_np,
            positions,
            draft_sampled,
            expanded_local_pos,
            seq_lens_upper_bound_np,
            return_logprobs=True,
        )
        num_reqs = idx_mapping.shape[0]
        chunk = slice(self._first_request, self._first_request + num_reqs)
        self._first_request += num_reqs
        self._path = self._step.path[chunk]
        sampled = sampled_rows.new_empty(num_reqs, trees.rows)
        num_sampled = torch.empty(num_reqs, dtype=torch.int32, device=logits.device)
        walk_trees(
            sampled_rows,
            verify_draft_sampled,
            cu_num_logits,
            idx_mapping,
            self._step.is_tree[chunk],
            trees,
            sampled,
            num_sampled,
            self._path,
        )
        return processed, sampled, num_sampled

    def _get_logprobs_tensors(
        self,
        sampled: torch.Tensor,
        num_sampled: torch.Tensor,
        logits: torch.Tensor,
        cu_num_logits: torch.Tensor,
        cu_num_logits_np: np.ndarray[Any, Any],
        max_num_logprobs: int,
    ) -> LogprobsTensors | None:
        """Stock reads the i-th sampled token's scores from the request's i-th row: bring the path's rows there."""
        if max_num_logprobs == NO_LOGPROBS:
            return None
        rows = path_rows(self._path, cu_num_logits, logits.shape[0])
        return super()._get_logprobs_tensors(
            sampled, num_sampled, logits.index_select(0, rows), cu_num_logits, cu_num_logits_np, max_num_logprobs
        )


def path_rows(path: torch.Tensor, starts: torch.Tensor, rows: int) -> torch.Tensor:
    """Index [rows] int64 that gathers each request's accepted rows to its front; the rest stays where it is.

    path [R, N] int32, local rows, -1 beyond the accepted ones; starts [R + 1] int32, each request's first row.
    """
    index = torch.arange(rows, dtype=torch.int64, device=path.device)
    requests = torch.searchsorted(starts[1:].long(), index, right=True)
    local = index - starts.long()[requests]
    within = (local < path.shape[1]) & (requests < path.shape[0])
    accepted = path[requests.clamp(max=path.shape[0] - 1), local.clamp(max=path.shape[1] - 1)].long()
    return torch.where(within & (accepted >= 0), starts.long()[requests] + accepted, index)
