"""The tree's share of vLLM's ModelState: depth RoPE, the rows of a step, and the commit of what was accepted.

Order of a real step [vllm/v1/worker/gpu/model_runner.py]: prepare_attn, prepare_inputs, forward, sampler, postprocess_state,
propose. Flat positions stay flat: slots, the drafter's context and num_computed all count rows; only RoPE sees depths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState

from ddtree_ext.engine.commit import KvCommit, StateCommit
from ddtree_ext.engine.counters import StepCounters
from ddtree_ext.engine.families import Families
from ddtree_ext.engine.layers import TreeLayers
from ddtree_ext.engine.options import drafter_width, node_budget
from ddtree_ext.engine.requests import request_budget
from ddtree_ext.engine.sampler import TreeSampler
from ddtree_ext.engine.step import VerifyStep
from ddtree_ext.kernels.block_tables import BlockTables, state_slots
from ddtree_ext.kernels.rows import expand_rows


class TreeStateMixin:
    """Mixed into the model state that the target would have had without us."""

    vllm_config: Any
    max_num_reqs: int
    max_num_tokens: int
    device: torch.device
    rope_state: Any

    def __init__(self, vllm_config: Any, model: Any, encoder_cache: Any, device: torch.device) -> None:
        super().__init__(vllm_config, model, encoder_cache, device)  # type: ignore[call-arg]
        self.width, self.budget = drafter_width(vllm_config), node_budget(vllm_config)
        self.step = VerifyStep.allocate(self.max_num_reqs, self.max_num_tokens, self.budget, device)
        self.counters = StepCounters(self.width, device)
        self.layers = TreeLayers.of(vllm_config, self.step)
        self.kv_commit: KvCommit | None = None
        self.state_commit: StateCommit | None = None
        self._tables = BlockTables.of(())
        self._families = Families.of(())

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """A new request, or a preempted one again, in slot `req_index`: no tree yet, and the budget of its parameters."""
        super().add_request(req_index, new_req_data)  # type: ignore[misc]
        self.step.trees.num_nodes[req_index].fill_(0)
        budget = request_budget(new_req_data.sampling_params, self.budget, self.width)
        self.step.budgets[req_index].fill_(budget)

    def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
        """The caches have their addresses: layers learn of the step, commits of the layers."""
        super().initialize_kv_cache(kv_cache_config, block_tables)  # type: ignore[misc]
        self.kv_commit = self.layers.bind_attention(self.step, kv_cache_config)
        self.state_commit = self.layers.bind_states(self.step, kv_cache_config)

    def custom_sampler(self, sampler: Any) -> tuple[Any, Any]:
        """The sampler of rows without drafts stays stock; rows of a tree are sampled by ours."""
        return sampler, TreeSampler(sampler, self.vllm_config.speculative_config, self.device, self.step)

    def prepare_attn(
        self,
        input_batch: Any,
        cudagraph_mode: CUDAGraphMode,
        block_tables: tuple[torch.Tensor, ...],
        slot_mappings: torch.Tensor,
        attn_groups: list[list[Any]],
        kv_cache_config: Any,
        for_capture: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Attention metadata by layer name; before it, the step's rows and state slots are written for this batch.

        block_tables: per cache group [R, blocks] int32; slot_mappings [groups, T] int64.
        """
        self._begin_step(input_batch, for_capture)
        if not self._tables.are(block_tables):
            self._tables = BlockTables.of(block_tables)
        if self.state_commit is not None:
            state_slots(self._tables, self.state_commit.groups, input_batch.num_reqs, self.step.state_slots)
        if self._families.source is not attn_groups:
            self._families = Families.of(attn_groups)
        built = self._families.built
        metadata: dict[str, Any] = super().prepare_attn(  # type: ignore[misc]
            input_batch,
            cudagraph_mode,
            block_tables,
            slot_mappings,
            built,
            kv_cache_config,
            for_capture,
            *args,
            **kwargs,
        )
        self._families.complete(metadata, block_tables, slot_mappings)
        return metadata

    def _begin_step(self, input_batch: Any, for_capture: bool) -> None:
        step, num_reqs = self.step, input_batch.num_reqs
        flags = np.ones(num_reqs, dtype=np.int32) if for_capture else tree_requests(input_batch, self.budget)
        step.num_reqs, step.any_tree, step.all_trees = num_reqs, bool(flags.any()), bool(flags.all())
        step.query_start_loc, step.seq_lens = input_batch.query_start_loc, input_batch.seq_lens
        if not step.all_trees:
            step.is_tree[:num_reqs].copy_(torch.from_numpy(flags), non_blocking=True)
        expand_rows(
            input_batch.idx_mapping,
            input_batch.query_start_loc[: num_reqs + 1],
            input_batch.seq_lens[:num_reqs],
            step.is_tree,
            step.path,
            step.trees,
            step.rows,
            step.all_trees,
        )

    def prepare_inputs(self, input_batch: Any, req_states: Any) -> dict[str, Any]:
        """Positions for RoPE: base + depth, written where a captured graph reads them."""
        inputs: dict[str, Any] = super().prepare_inputs(input_batch, req_states)  # type: ignore[misc]
        tokens = input_batch.num_tokens
        if self.rope_state is None:
            return inputs | {"positions": self.step.rows.positions[: input_batch.num_tokens_after_padding]}
        # M-RoPE positions of generated text are flat position + a constant per request, in every dimension.
        shift = self.step.rows.positions[:tokens] - input_batch.positions[:tokens]
        self.rope_state.positions[:, :tokens] += shift
        return inputs

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        inputs: dict[str, Any] = super().prepare_dummy_inputs(num_reqs, num_tokens)  # type: ignore[misc]
        if self.rope_state is None:
            inputs |= {"positions": self.step.rows.positions[:num_tokens]}
        return inputs

    def postprocess_state(
        self,
        idx_mapping: torch.Tensor,
        num_sampled: torch.Tensor | int,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> None:
        """Commits the accepted path: KV moved together, recurrent state and convolution window replayed."""
        if not isinstance(num_sampled, int) and self.step.any_tree:
            # A prompt's tail that runs as a decode consumes its row although nothing is sampled from it.
            consumed = num_sampled.clamp(min=1)
            if self.kv_commit is not None:
                self.kv_commit.run(self.step, self._tables, consumed)
            if self.state_commit is not None:
                self.state_commit.run(self.step, consumed)
            self.counters.add(self.step, num_sampled)
        # After the commit the state is that of the last accepted token: never an offset into drafts.
        super().postprocess_state(idx_mapping, 1, num_computed_tokens)  # type: ignore[misc]


def tree_requests(input_batch: Any, budget: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Which requests' rows are a tree: [R] int32. The rule is the hybrid model state's own for speculative rows.

    A prompt's tail of one token runs as a decode: its tree is the root alone, for its drafts are placeholders.
    """
    prefilling = input_batch.is_prefilling_np
    if input_batch.prefill_runs_as_decode_np is not None:
        prefilling = prefilling & ~input_batch.prefill_runs_as_decode_np
    scheduled = input_batch.num_scheduled_tokens
    flags: np.ndarray[Any, np.dtype[np.int32]] = (~prefilling & (scheduled > 0) & (scheduled <= budget + 1)).astype(
        np.int32
    )
    return flags


class DenseTreeState(TreeStateMixin, DefaultModelState):  # type: ignore[misc]
    """For targets with attention only."""


class HybridTreeState(TreeStateMixin, MambaHybridModelState):  # type: ignore[misc]
    """For targets with Gated DeltaNet layers beside attention."""


def state_class_for(stock: Callable[..., Any]) -> type[TreeStateMixin]:
    """The tree's class for the model state that vLLM would use; raises OptionError for any other."""
    from ddtree_ext.engine.options import OptionError

    classes: dict[Any, type[TreeStateMixin]] = {
        DefaultModelState: DenseTreeState,
        MambaHybridModelState: HybridTreeState,
    }
    if stock not in classes:
        raise OptionError(f"targets whose model state is {stock.__name__} are not supported by ddtree")
    return classes[stock]
