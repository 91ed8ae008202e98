"""The sampler's part between vLLM's and the walk: positions and paths of each chunk, and scores only for who wants them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from drafts import int32
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from ddtree_ext.engine.sampler import TreeSampler, path_rows
from ddtree_ext.engine.step import VerifyStep

REQUESTS, ROWS, VOCABULARY = 4, 6, 7


class Recording:
    """Stands in for vLLM's sampler: keeps the positions that each chunk is sampled at, and always draws token 0."""

    compute_nans = return_sampling_mask = False
    logprobs_mode = "raw_logprobs"
    req_states = SimpleNamespace(prefill_len=SimpleNamespace(gpu=torch.full((REQUESTS,), 10, dtype=torch.int32)))
    sampling_states = SimpleNamespace(max_num_logprobs=lambda _: NO_LOGPROBS)

    def __init__(self) -> None:
        self.positions: list[list[int]] = []
        self.drafts: list[torch.Tensor] = []

    def sample(self, logits: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.positions.append(args[3].tolist())
        self.drafts.append(args[4])
        return torch.zeros(logits.shape[0], dtype=torch.int64), logits


def sampler_of_a_step() -> tuple[TreeSampler, Recording, VerifyStep]:
    """Rows of the batch are at positions 100, 101, ...; in the batch each request has a chain of ROWS."""
    step = VerifyStep.allocate(REQUESTS, 64, ROWS - 1, torch.device("cpu"))
    step.rows.positions.copy_(torch.arange(100, 100 + step.rows.positions.shape[0]))
    step.is_tree.fill_(1)
    step.trees.num_nodes.fill_(ROWS - 1)
    step.trees.parents.copy_(torch.arange(-1, ROWS - 1).expand(REQUESTS, ROWS))
    recording = Recording()
    config = SimpleNamespace(
        num_speculative_tokens=ROWS - 1, enable_adaptive_verification=False, rejection_sample_method="standard"
    )
    return TreeSampler(recording, config, torch.device("cpu"), step), recording, step


def verify(sampler: TreeSampler, requests: list[int], drafts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk of whole requests, whose rows hold `drafts`; returns (sampled, num_sampled)."""
    rows = ROWS * len(requests)
    drafted = torch.tensor(drafts * len(requests))
    _, sampled, num_sampled = sampler._verify(
        torch.zeros(rows, VOCABULARY),
        None,
        drafted,
        torch.zeros(rows, dtype=torch.int64),
        int32([ROWS * number for number in range(len(requests) + 1)]),
        int32(requests),
        np.array(requests),
        int32(requests).repeat_interleave(ROWS),
        int32(list(range(ROWS)) * len(requests)),
        np.zeros(len(requests), dtype=np.int64),
        drafted,
    )
    return sampled, num_sampled


def begin(sampler: TreeSampler, indices: torch.Tensor) -> None:
    """What a call does before vLLM cuts the batch into chunks."""
    sampler._first_request, sampler._first_row = 0, 0
    sampler._positions = sampler._step.rows.positions[indices]


def test_every_chunk_has_its_own_rows_and_path() -> None:
    """vLLM cuts a batch that is too large for its logits; a chunk is told neither its first request nor its first row."""
    sampler, recording, step = sampler_of_a_step()
    begin(sampler, torch.arange(REQUESTS * ROWS))
    accepted = [3, 0, 5, 2]
    for request, count in enumerate(accepted):
        _, num_sampled = verify(sampler, [request], [0] * (count + 1) + [1] * (ROWS - 1 - count))
        assert num_sampled.tolist() == [count + 1]
    assert [position for chunk in recording.positions for position in chunk] == list(range(100, 100 + REQUESTS * ROWS))
    assert [int((path >= 0).sum()) for path in step.path] == [count + 1 for count in accepted]


def test_chunks_may_be_of_unequal_size() -> None:
    sampler, recording, _ = sampler_of_a_step()
    begin(sampler, torch.arange(REQUESTS * ROWS).flip(0))
    verify(sampler, [0], [0] * ROWS)
    verify(sampler, [1, 2, 3], [0] * ROWS)
    assert [len(chunk) for chunk in recording.positions] == [ROWS, 3 * ROWS]
    assert [position for chunk in recording.positions for position in chunk] == list(
        range(100 + REQUESTS * ROWS - 1, 99, -1)
    )


def test_scores_that_nobody_asked_for_are_not_computed() -> None:
    sampler, _, _ = sampler_of_a_step()
    nothing = torch.zeros(0)
    assert sampler._get_logprobs_tensors(nothing, nothing, nothing, nothing, np.zeros(0), NO_LOGPROBS) is None


def test_accepted_rows_come_to_the_front_of_their_request() -> None:
    path = int32([[0, 2, 5, -1], [0, -1, -1, -1], [0, 1, -1, -1]])
    assert path_rows(path, int32([0, 6, 9, 11]), 12).tolist() == [0, 2, 5, 3, 4, 5, 6, 7, 8, 9, 10, 11]


FIRST = 3
"""Rows of a prompt before the trees' rows, without logits."""


def batch(requests: int) -> SimpleNamespace:
    """What vLLM hands to a call: trees of ROWS rows after the prompt's, every row's own token 0."""
    rows = requests * ROWS
    slots = int32(list(range(requests)))
    lengths = torch.full((requests,), ROWS + 50, dtype=torch.int32)
    starts = int32([number * ROWS for number in range(requests + 1)])
    return SimpleNamespace(
        num_reqs=requests,
        input_ids=torch.zeros(FIRST + rows, dtype=torch.int32),
        positions=torch.arange(50, 50 + FIRST + rows),
        logits_indices=torch.arange(FIRST, FIRST + rows),
        idx_mapping=slots,
        idx_mapping_np=slots.numpy(),
        expanded_idx_mapping=slots.repeat_interleave(ROWS),
        expanded_local_pos=int32(list(range(ROWS)) * requests),
        cu_num_logits=starts,
        cu_num_logits_np=starts.numpy(),
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
    )


def test_a_call_samples_at_the_rows_that_have_logits_and_begins_anew_each_time() -> None:
    sampler, recording, step = sampler_of_a_step()
    for requests in (3, 2, 3):
        answer = sampler(torch.zeros(requests * ROWS, VOCABULARY), batch(requests))
        assert recording.positions.pop() == list(range(100 + FIRST, 100 + FIRST + requests * ROWS))
        assert answer.num_sampled.tolist() == [ROWS] * requests
        assert [int((path >= 0).sum()) for path in step.path[:requests]] == [ROWS] * requests
        step.path.fill_(-1)


def test_a_draft_that_is_invalid_is_not_walked_over_and_is_still_what_parameters_read() -> None:
    """Of a grammar: vLLM marks it for the verification alone; penalties go by the true ids."""
    sampler, recording, _ = sampler_of_a_step()
    invalid = torch.zeros(2 * ROWS, dtype=torch.bool)
    invalid[2] = True
    answer = sampler(torch.zeros(2 * ROWS, VOCABULARY), batch(2), invalid_drafts=invalid)
    assert answer.num_sampled.tolist() == [2, ROWS]
    assert (recording.drafts[0] >= 0).all()


def test_scores_are_read_from_the_rows_of_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, _, _ = sampler_of_a_step()
    sampler._path = int32([[0, 2, 5, -1], [0, 3, -1, -1]])
    read: list[list[float]] = []
    monkeypatch.setattr(
        RejectionSampler,
        "_get_logprobs_tensors",
        lambda self, tokens, count, logits, *_: read.append(logits[:, 0].tolist()),
    )
    rows = torch.arange(10.0)[:, None]
    sampler._get_logprobs_tensors(torch.zeros(2, 4), int32([3, 2]), rows, int32([0, 6, 10]), np.array([0, 6, 10]), 2)
    assert read == [[0.0, 2.0, 5.0, 3.0, 4.0, 5.0, 6.0, 9.0, 8.0, 9.0]]
