"""Metadata of a further cache group: what building it anew gives, but a batch of trees alone keeps what the first group has."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from drafts import int32
from vllm.v1.attention.backend import CommonAttentionMetadata

from ddtree_ext.engine.gdn_metadata import TreeGDNBackend, TreeGDNMetadataBuilder

DRAFTS, REQUESTS, BLOCK = 7, 8, 16
PROMPT = -1
"""In place of a number of drafts: the rows are a prompt's, or plain decoding's."""


@dataclass(frozen=True)
class Batch:
    """Rows and drafts of each request; `padding` empty requests follow them."""

    rows: tuple[int, ...]
    drafts: tuple[int, ...]
    padding: int = 0

    @property
    def requests(self) -> int:
        return len(self.rows) + self.padding

    def table(self, first: int) -> torch.Tensor:
        """A block table of one block per request [requests, 1]."""
        return int32([[first + request] for request in range(self.requests)])

    def common(self, table: torch.Tensor) -> CommonAttentionMetadata:
        starts = int32([0, *self.rows, *([0] * self.padding)]).cumsum(0).to(torch.int32)
        lengths = int32([40 + rows for rows in self.rows] + [0] * self.padding)
        return CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts.cpu(),
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=lengths.cpu(),
            num_reqs=self.requests,
            num_actual_tokens=sum(self.rows),
            max_query_len=max(self.rows),
            max_seq_len=int(lengths.max()),
            block_table_tensor=table,
            slot_mapping=torch.zeros(sum(self.rows), dtype=torch.int64),
            is_prefilling=torch.tensor([drafts == PROMPT for drafts in self.drafts] + [False] * self.padding),
        )

    def built(self, builder: TreeGDNMetadataBuilder, table: torch.Tensor) -> Any:
        return builder.build(
            0,
            self.common(table),
            num_accepted_tokens=torch.ones(self.requests, dtype=torch.int32),
            num_decode_draft_tokens_cpu=torch.tensor([*self.drafts, *([PROMPT] * self.padding)], dtype=torch.int32),
        )


def builder(monkeypatch: pytest.MonkeyPatch, graphs: bool) -> TreeGDNMetadataBuilder:
    """Ours over stock's own initialisation, of a configuration as far as that reads it."""
    from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn as stock

    monkeypatch.setattr(stock, "_resolve_gdn_prefill_backend", lambda config: (None, "triton"))
    cudagraph_mode = SimpleNamespace(has_full_cudagraphs=lambda: graphs)
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_mode=cudagraph_mode, max_cudagraph_capture_size=None),
        speculative_config=SimpleNamespace(num_speculative_tokens=DRAFTS, parallel_drafting=False),
        cache_config=SimpleNamespace(mamba_cache_mode="none"),
        scheduler_config=SimpleNamespace(max_num_seqs=REQUESTS),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        use_v2_model_runner=True,
    )
    spec = SimpleNamespace(block_size=BLOCK, num_speculative_blocks=0, mamba_cache_mode="none")
    return TreeGDNMetadataBuilder(spec, ["layer"], config, torch.device("cpu"))


def differing(ours: Any, built: Any) -> list[str]:
    """Names of the fields that are not equal; `nums_dict` holds what the convolution's kernel looked up."""
    names = []
    for name in (field.name for field in fields(built) if field.name != "nums_dict"):
        left, right = getattr(ours, name), getattr(built, name)
        if not (torch.equal(left, right) if isinstance(left, torch.Tensor) else left is right or left == right):
            names.append(name)
    return names


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(Batch((8, 20), (7, PROMPT)), id="a tree and a prompt"),
        pytest.param(Batch((20, 8, 3, 8), (PROMPT, 7, PROMPT, 7)), id="prompts between trees"),
        pytest.param(Batch((8, 1), (7, PROMPT)), id="a tree and a plain row"),
        pytest.param(Batch((8, 20), (7, PROMPT), padding=2), id="padded"),
        pytest.param(Batch((20, 30), (PROMPT, PROMPT)), id="prompts alone"),
        pytest.param(Batch((1, 1), (PROMPT, PROMPT)), id="plain decoding"),
        pytest.param(Batch((1, 1), (PROMPT, PROMPT), padding=1), id="plain decoding, padded"),
    ],
)
def test_a_further_group_reads_its_own_states(batch: Batch, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    first = batch.built(builder(monkeypatch, graphs), batch.table(1))
    ours = builder(monkeypatch, graphs).update_block_table(first, batch.table(101), torch.zeros(0))
    assert differing(ours, batch.built(builder(monkeypatch, graphs), batch.table(101))) == []
    assert differing(ours, first) != []


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    "batch", [Batch((8, 8), (7, 7)), Batch((8, 5, 1), (7, 4, 0)), Batch((8, 1), (7, 0), padding=2)]
)
def test_trees_alone_share_the_first_groups(batch: Batch, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their states are read from VerifyStep.state_slots; nothing is copied for a further group."""
    first = batch.built(builder(monkeypatch, graphs), batch.table(1))
    further = builder(monkeypatch, graphs)
    further.spec_state_indices_tensor.fill_(-7)
    assert further.update_block_table(first, batch.table(101), torch.zeros(0)) is first
    assert bool((further.spec_state_indices_tensor == -7).all())


def test_the_backend_names_that_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TreeGDNBackend.get_builder_cls() is TreeGDNMetadataBuilder
    assert builder(monkeypatch, graphs=False).supports_update_block_table
