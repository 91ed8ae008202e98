"""vLLM's /metrics as numbers. The fixture is what vLLM 0.32.0 with a chain of 7 printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.serve import metrics
from deployer.serve.metrics import parse

CHAIN = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny"} 6.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="tiny"} 42.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="tiny"} 33.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="0"} 6.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="1"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="tiny",position="1"} 1.7e+09
"""
TREE = (
    CHAIN
    + """\
vllm:ddtree_trees_total 6.0
vllm:ddtree_nodes_total 90.0
vllm:ddtree_accepted_off_spine_total 4.0
vllm:ddtree_accepted_per_depth_total{depth="1"} 6.0
vllm:ddtree_accepted_per_depth_total{depth="2"} 5.0
vllm:ddtree_accepted_per_node_total{node="1"} 6.0
vllm:ddtree_accepted_per_node_total{node="2"} 0.0
vllm:ddtree_accepted_per_node_total{node="3"} 5.0
vllm:ddtree_accepted_per_node_total{node="4"} 0.0
"""
)


def test_a_chains_acceptance_is_by_position() -> None:
    counted = parse(CHAIN)
    assert counted.acceptance_length == 6.5
    assert counted.acceptance_by_position == (1.0, 0.5)
    assert counted[metrics.DRAFT_TOKENS] == 42


def test_a_trees_acceptance_is_by_depth_not_by_node() -> None:
    assert parse(TREE).acceptance_by_position == (1.0, pytest.approx(5 / 6))


def test_what_a_tree_accepted_is_also_by_node_to_the_last_that_ever_was() -> None:
    assert parse(TREE).acceptance_by_node == (1.0, 0.0, pytest.approx(5 / 6))
    assert parse(TREE).since(parse(TREE)).acceptance_by_node == ()
    assert parse(CHAIN).acceptance_by_node == ()


def test_engines_are_summed() -> None:
    two = parse(CHAIN + CHAIN.replace('engine="0"', 'engine="1"'))
    assert two[metrics.DRAFTS] == 12
    assert two.acceptance_length == 6.5


def test_before_the_first_draft_there_is_no_acceptance() -> None:
    nothing = parse(CHAIN).since(parse(CHAIN))
    assert nothing.acceptance_length is None
    assert nothing.acceptance_by_position == ()
    assert parse("")[metrics.DRAFTS] == 0


@given(st.integers(0, 999), st.integers(0, 999), st.integers(1, 99), st.integers(0, 99))
def test_only_what_was_counted_since_counts(drafts: int, accepted: int, more: int, gained: int) -> None:
    before = f"{metrics.DRAFTS} {drafts}\n{metrics.ACCEPTED} {accepted}\n"
    after = f"{metrics.DRAFTS} {drafts + more}\n{metrics.ACCEPTED} {accepted + gained}\n"
    assert parse(after).since(parse(before)).acceptance_length == pytest.approx(1 + gained / more)
