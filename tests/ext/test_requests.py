"""Nodes that one request's tree may have, by its sampling parameters."""

from __future__ import annotations

from typing import Any

import pytest
from vllm import SamplingParams
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
