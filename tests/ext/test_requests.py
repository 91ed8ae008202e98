"""Nodes that one request's tree may have, by its sampling parameters."""

from __future__ import annotations

from typing import Any

import pytest
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.sampling_params import StructuredOutputsParams

from ddtree_ext.engine.requests import request_budget

BUDGET, WIDTH = 31, 7


@pytest.mark.parametrize(
    ("params", "nodes"),
    [
        ({}, BUDGET),
        ({"temperature": 0.7, "top_p": 0.9, "top_k": 8, "min_p": 0.1, "seed": 1, "logprobs": 2}, BUDGET),
        ({"logit_bias": {3: 1.0}, "min_tokens": 4}, BUDGET),
        ({"presence_penalty": 0.5}, WIDTH),
        ({"presence_penalty": -0.5}, WIDTH),
        ({"frequency_penalty": 0.5}, WIDTH),
        ({"repetition_penalty": 1.1}, WIDTH),
        ({"repetition_penalty": 0.9}, WIDTH),
        ({"bad_words": ["word"]}, WIDTH),
        ({"thinking_token_budget": 0}, WIDTH),
        ({"structured_outputs": StructuredOutputsParams(regex="a*")}, WIDTH),
        ({"extra_args": {"ddtree": "off"}}, 0),
        ({"extra_args": {"ddtree": "off"}, "repetition_penalty": 1.1}, 0),
        ({"extra_args": {"ddtree": "on"}}, BUDGET),
        ({"extra_args": {"ddtree": True}}, BUDGET),
        ({"extra_args": {"ddtree": False}}, 0),
        ({"extra_args": {"ddtree": None}}, BUDGET),
        ({"extra_args": {"ddtree": float("inf")}}, 0),
        ({"extra_args": {"ddtree": 20}}, 20),
        ({"extra_args": {"ddtree": 3}}, 3),
        ({"extra_args": {"ddtree": 63}}, BUDGET),
        ({"extra_args": {"ddtree": 0}}, 0),
        ({"extra_args": {"ddtree": -1}}, 0),
        ({"extra_args": {"ddtree": 20}, "repetition_penalty": 1.1}, WIDTH),
        ({"extra_args": {"ddtree": 3}, "repetition_penalty": 1.1}, 3),
        ({"extra_args": {"other": "off"}}, BUDGET),
    ],
)
def test_what_reads_its_predecessors_gets_the_spine(params: dict[str, Any], nodes: int) -> None:
    assert request_budget(SamplingParams(**params), BUDGET, WIDTH) == nodes


def test_a_spine_is_cut_to_a_smaller_budget() -> None:
    assert request_budget(SamplingParams(repetition_penalty=1.1), 3, WIDTH) == 3


def test_a_request_that_samples_nothing_has_no_tree() -> None:
    assert request_budget(None, BUDGET, WIDTH) == 0


@pytest.mark.parametrize("request_of", [CompletionRequest, ChatCompletionRequest])
@pytest.mark.parametrize(
    ("switch", "nodes"),
    [
        ('"off"', 0),
        ('"OFF"', 0),
        ('" no "', 0),
        ('"false"', 0),
        ("false", 0),
        ("0", 0),
        ('"0"', 0),
        ('"on"', BUDGET),
        ('"True"', BUDGET),
        ("15", 15),
        ("15.0", 15),
        ('"15"', 15),
        ("63", BUDGET),
        ("-5", 0),
        ('"plain"', 0),
        ('""', 0),
        ("1.5", 0),
        ('["off"]', 0),
    ],
)
def test_the_switch_as_it_arrives_over_http(request_of: type, switch: str, nodes: int) -> None:
    """What it does not know switches the tree off; none of these has to be known to decode the same text."""
    asked = '"prompt": "x"' if request_of is CompletionRequest else '"messages": [{"role": "user", "content": "x"}]'
    request = request_of.model_validate_json(f'{{"model": "m", {asked}, "vllm_xargs": {{"ddtree": {switch}}}}}')
    assert request_budget(request.to_sampling_params(16, {}), BUDGET, WIDTH) == nodes
