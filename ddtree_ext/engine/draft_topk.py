"""The best tokens of every drafted position over the whole vocabulary, also where each rank has a shard of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.distributed import tensor_model_parallel_all_gather

from ddtree_ext.kernels.topk import read_chunks, top_logprobs
from ddtree_ext.kernels.topk_merge import merge_ranks, narrow_chunks
from ddtree_ext.kernels.topk_scratch import TopkScratch

Ranked = tuple[torch.Tensor, torch.Tensor]
Ranking = Callable[[torch.Tensor], Ranked]
"""Of hidden states [L, H]: log-probabilities [L, k] float32, descending, and ids [L, k] int64; both are written anew by the
next call, and the same on every rank.
"""


class WholeTopk:
    """Of logits over the whole vocabulary, which the model gathers where it has them in shards."""

    def __init__(self, model: Any, rows: int, vocabulary: int, k: int, device: torch.device) -> None:
        self._logits: Callable[[torch.Tensor], torch.Tensor] = model.compute_logits
        self._scratch = TopkScratch.allocate(rows, vocabulary, k, device)
        self._ranked = _ranked(rows, k, device)

    def __call__(self, hidden: torch.Tensor) -> Ranked:
        logprobs, ids = (tensor[: len(hidden)] for tensor in self._ranked)
        top_logprobs(self._logits(hidden), self._scratch, logprobs, ids)
        return logprobs, ids


class ShardTopk:
    """Of a shard's logits: k candidates of each position go to the other ranks, and no logits.

    15 positions of 248320 logits in bfloat16 on two ranks are 3.7 MB from each to the other; these are 2 kB.
    """

    def __init__(
        self,
        model: Any,
        rows: int,
        k: int,
        device: torch.device,
        gather: Callable[[torch.Tensor, int], torch.Tensor] = tensor_model_parallel_all_gather,
    ) -> None:
        self._model, self._gather = model, gather
        shard = model.lm_head.shard_indices
        begin, end = shard.org_vocab_start_index, shard.org_vocab_end_index
        self._scratch = TopkScratch.allocate(rows, end - begin, k, device, first=begin)
        self._found = torch.zeros(rows, self._scratch.keys.shape[2] + 1, dtype=torch.int64, device=device)
        self._ranked = _ranked(rows, k, device)

    def __call__(self, hidden: torch.Tensor) -> Ranked:
        rows = len(hidden)
        logits = self._model.logits_processor(self._model.lm_head, hidden, skip_gather=True)
        read_chunks(logits[:, : self._scratch.vocabulary], self._scratch)
        found = self._found[:rows]
        narrow_chunks(rows, self._scratch, found)
        logprobs, ids = (tensor[:rows] for tensor in self._ranked)
        merge_ranks(self._gather(found, 0).view(-1, *found.shape), self._scratch, logprobs, ids)
        return logprobs, ids


def draft_topk(model: Any, rows: int, vocabulary: int, k: int, device: torch.device) -> Ranking:
    """For at most `rows` positions of this drafter. Every rank decides alike.

    In shards where each of them has k tokens and the ids are the target's [vllm/model_executor/models/qwen3_dflash.py,
    compute_logits].
    """
    head = model.lm_head
    ranks = head.tp_size
    smallest = vocabulary - (ranks - 1) * head.num_embeddings_per_partition
    sharded = ranks > 1 and head.parallel_group is None and head.org_vocab_size == vocabulary and smallest >= k
    if sharded and model.draft_id_to_target_id is None:
        return ShardTopk(model, rows, k, device)
    return WholeTopk(model, rows, vocabulary, k, device)


def _ranked(rows: int, k: int, device: torch.device) -> Ranked:
    return torch.zeros(rows, k, device=device), torch.zeros(rows, k, dtype=torch.int64, device=device)
