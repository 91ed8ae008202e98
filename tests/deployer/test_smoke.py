"""`smoke`: when two greedy outputs agree, when they differ by a tie, and when the service is down."""

from __future__ import annotations

import pytest
from serving import Host, inventory

from deployer.errors import DeployError
from deployer.plan.apply import Silent
from deployer.serve import smoke
from deployer.serve.endpoint import Completion
from deployer.serve.smoke import first_difference


def test_smoke_on_a_stopped_service_fails_at_once(host: Host) -> None:
    with pytest.raises(DeployError, match="is inactive"):
        smoke.smoke(inventory(), host, Silent())


def completion(*tokens: str, top: dict[str, float] | None = None) -> Completion:
    return Completion("".join(tokens), tokens, tuple({**{token: -0.7}, **(top or {})} for token in tokens))


def test_equal_tokens_agree_and_the_first_difference_is_judged_by_the_plain_gap() -> None:
    assert first_difference(completion("a", "b"), completion("a", "b")) is None
    near = first_difference(completion("a", "b", top={"c": -0.8}), completion("a", "c"))
    assert near is not None
    assert near.tie
    assert near.position == 1
    far = first_difference(completion("a", "b", top={"c": -1.8}), completion("a", "c"))
    assert far is not None
    assert not far.tie


def test_a_token_that_plain_decoding_did_not_consider_is_no_tie_nor_is_a_shorter_output() -> None:
    for tree in (completion("a", "z"), completion("a")):
        found = first_difference(completion("a", "b"), tree)
        assert found is not None
        assert not found.tie
