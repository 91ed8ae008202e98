"""The drafter: vLLM's DFlash speculator at the checkpoint's own width, followed by the growth of one tree per request."""

from __future__ import annotations

import copy
from typing import Any

import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator

from ddtree_ext.engine.draft_topk import Ranking, draft_topk
from ddtree_ext.engine.options import DDTreeOptions, drafter_width, node_budget
from ddtree_ext.engine.step import VerifyStep
from ddtree_ext.kernels.build import build_trees
from ddtree_ext.kernels.gather import RowPointers, gather_rows


class TreeSpeculator(DFlashSpeculator):  # type: ignore[misc]
    """Drafts `width` positions, grows trees of up to `budget` nodes, returns [R, budget] node tokens.

    The scheduler's placeholders, the request state and the target's graphs are sized by num_speculative_tokens, the budget;
    the base class is built from a copied configuration whose num_speculative_tokens is the drafter's width.
    """

    _speculator_name = "DDTree"

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        self.budget = node_budget(vllm_config)
        narrow = copy.copy(vllm_config)
        narrow.speculative_config = copy.copy(vllm_config.speculative_config)
        narrow.speculative_config.num_speculative_tokens = drafter_width(vllm_config)
        # Budgets by batch size are the tree's: whatever they are, the drafter's pass has its own width.
        narrow.speculative_config.num_speculative_tokens_per_batch_size = None
        super().__init__(narrow, device)
        self.topk = min(DDTreeOptions.from_config(vllm_config).topk, self.budget, self.vocab_size)
        self._ranked: Ranking | None = None
        self._step: VerifyStep | None = None
        self._pointers: RowPointers | None = None

    def load_model(self, target_model: Any) -> None:
        """The drafter has the target's head from here on, and is known to have it whole or in shards."""
        super().load_model(target_model)
        drafted = self.max_num_reqs * self.num_speculative_steps
        self._ranked = draft_topk(self.model, drafted, self.vocab_size, self.topk, self.device)

    def set_attn(self, model_state: Any, *args: Any, **kwargs: Any) -> None:
        """The KV cache exists: from here on each draft pass grows trees in the model state's step."""
        super().set_attn(model_state, *args, **kwargs)
        self._step = model_state.step

    def _num_graph_context_tokens(self, num_reqs: int) -> int:
        """Rows of a full verify, which follow the budget and not the drafter's width."""
        return int(min(num_reqs * (self.budget + 1), self.max_num_tokens))

    def _generate_draft(
        self,
        num_reqs: int,
        num_tokens_padded: int,
        attn_metadata: dict[str, Any] | None,
        slot_mappings: dict[str, torch.Tensor] | None,
        num_tokens_across_dp: torch.Tensor | None,
        cudagraph_runtime_mode: CUDAGraphMode = CUDAGraphMode.NONE,
    ) -> None:
        """One draft pass, top-k and growth: all on static buffers, so that a graph can hold it."""
        hidden = self._run_model(
            num_tokens_padded, attn_metadata, slot_mappings, num_tokens_across_dp, cudagraph_runtime_mode
        )
        drafted = num_reqs * self.num_speculative_steps
        assert self._ranked is not None, "the drafter is not loaded"
        logprobs, ids = self._ranked(hidden[self.sample_indices[:drafted]])
        if self._step is None:  # memory profiling, before the KV cache exists
            return
        slots = self.sample_idx_mapping[: drafted : self.num_speculative_steps].contiguous()
        shape = (num_reqs, self.num_speculative_steps, self.topk)
        build_trees(
            logprobs.view(shape), ids.view(shape), self._step.budgets[slots.clamp(min=0)], slots, self._step.trees
        )

    def propose(
        self,
        input_batch: Any,
        attn_metadata: dict[str, Any],
        slot_mappings: dict[str, torch.Tensor],
        last_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        num_sampled: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Node tokens [R, budget] int64 of the next step's trees, dead nodes 0.

        The base class takes each request's first num_sampled rows as its new context: the accepted path's rows are
        gathered there first.
        """
        step = self._step
        if step is not None and step.any_tree and aux_hidden_states and not kwargs.get("dummy_run", False):
            reqs = step.num_reqs
            gather_rows(  # in place: nobody reads them after the drafter
                aux_hidden_states,
                self._pointers_of(aux_hidden_states),
                step.query_start_loc[: reqs + 1],
                step.path[:reqs],
                num_sampled,
                step.is_tree[:reqs],
            )
        super().propose(
            input_batch,
            attn_metadata,
            slot_mappings,
            last_hidden_states,
            aux_hidden_states,
            num_sampled,
            *args,
            **kwargs,
        )
        if step is None:
            return self.draft_tokens.new_zeros(input_batch.num_reqs, self.budget)
        return step.trees.tokens[input_batch.idx_mapping]

    def _pointers_of(self, states: list[torch.Tensor]) -> RowPointers:
        """Those of a captured graph's outputs stay where they are from step to step."""
        if self._pointers is None or self._pointers.addresses != tuple(state.data_ptr() for state in states):
            self._pointers = RowPointers.of(states)
        return self._pointers
