"""The drafter's best tokens, found by each rank in its shard of the vocabulary: what one rank finds in all of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from drafts import DEVICE

from ddtree_ext.engine.draft_topk import ShardTopk, WholeTopk, draft_topk

HIDDEN, K = 8, 6


@dataclass(frozen=True)
class Head:
    """A stand-in for vLLM's ParallelLMHead: rows of the weight that this rank has, padded to the others' number."""

    weight: torch.Tensor
    tp_size: int = 1
    rank: int = 0
    parallel_group: object | None = None

    @property
    def org_vocab_size(self) -> int:
        return len(self.weight)

    @property
    def num_embeddings_per_partition(self) -> int:
        return -(-len(self.weight) // 64 // self.tp_size) * 64

    @property
    def shard_indices(self) -> Any:
        size = self.num_embeddings_per_partition
        begin = self.rank * size
        return SimpleNamespace(org_vocab_start_index=begin, org_vocab_end_index=min(begin + size, len(self.weight)))

    def shard(self) -> torch.Tensor:
        """Its rows; those beyond the vocabulary would win every comparison."""
        own = self.weight[self.shard_indices.org_vocab_start_index : self.shard_indices.org_vocab_end_index]
        return torch.cat([own, torch.full((self.num_embeddings_per_partition - len(own), HIDDEN), 1e3)])


def model(head: Head, ids_of_target: torch.Tensor | None = None) -> Any:
    def logits_processor(head: Head, hidden: torch.Tensor, skip_gather: bool) -> torch.Tensor:
        assert skip_gather
        return hidden @ head.shard().T

    return SimpleNamespace(
        lm_head=head,
        logits_processor=logits_processor,
        draft_id_to_target_id=ids_of_target,
        compute_logits=lambda hidden: hidden @ head.weight.T,
    )


def head(rng: torch.Generator, vocabulary: int, ranks: int) -> Head:
    return Head(torch.randn(vocabulary, HIDDEN, generator=rng, device=DEVICE), ranks)


def ranking(kind: Head, vocabulary: int = 300, ids_of_target: torch.Tensor | None = None) -> object:
    return draft_topk(model(kind, ids_of_target), 4, vocabulary, K, torch.device(DEVICE))


@pytest.mark.parametrize(("vocabulary", "ranks"), [(300, 2), (128, 2), (1000, 4)])
def test_every_rank_finds_what_one_rank_finds_in_the_whole_vocabulary(
    rng: torch.Generator, vocabulary: int, ranks: int
) -> None:
    whole = head(rng, vocabulary, ranks)
    hidden = torch.randn(4, HIDDEN, generator=rng, device=DEVICE)[:3].abs()
    models = [model(replace(whole, rank=rank)) for rank in range(ranks)]
    exchanged: list[torch.Tensor] = []

    def keep(found: torch.Tensor, dim: int) -> torch.Tensor:
        assert dim == 0
        exchanged.append(found.clone())
        return found

    for own in models:
        ShardTopk(own, 4, K, torch.device(DEVICE), keep)(hidden)
    assert {found.shape for found in exchanged} == {(3, 9)}, "eight keys and the sums: no logits"
    together = torch.cat(exchanged)
    expected = WholeTopk(models[0], 4, vocabulary, K, torch.device(DEVICE))(hidden)
    answers = [ShardTopk(own, 4, K, torch.device(DEVICE), lambda *_: together)(hidden) for own in models]
    for logprobs, ids in answers:
        assert torch.equal(ids, expected[1])
        torch.testing.assert_close(logprobs, expected[0], rtol=1e-5, atol=1e-5)
        assert torch.equal(logprobs, answers[0][0]), "every rank grows the same trees"


def test_shards_are_used_where_every_rank_has_enough_tokens_of_the_targets(rng: torch.Generator) -> None:
    assert isinstance(ranking(head(rng, 300, 2)), ShardTopk)
    assert isinstance(ranking(head(rng, 300, 1)), WholeTopk)
    assert isinstance(ranking(replace(head(rng, 300, 2), parallel_group=object())), WholeTopk)
    assert isinstance(ranking(head(rng, 300, 2), ids_of_target=torch.arange(300)), WholeTopk)
    assert isinstance(ranking(head(rng, 200, 2), vocabulary=300), WholeTopk), "a smaller vocabulary than the target's"


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_decide_alike_though_the_last_has_fewer_tokens(rng: torch.Generator, rank: int) -> None:
    assert isinstance(ranking(replace(head(rng, 133, 2), rank=rank), vocabulary=133), WholeTopk), "5 tokens of 6"
    assert isinstance(ranking(replace(head(rng, 134, 2), rank=rank), vocabulary=134), ShardTopk)
