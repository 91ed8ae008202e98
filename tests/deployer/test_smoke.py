"""`smoke`: 0 only for what was seen; when two greedy outputs agree, when they differ by a tie, when others hide it."""

from __future__ import annotations

from typing import Any

import pytest
from serving import Host, Machine, applied, inventory

from deployer.errors import DeployError, GateError, UsageError
from deployer.inventory.model import Inventory
from deployer.plan.apply import Silent
from deployer.serve import metrics, plan, smoke
from deployer.serve.endpoint import Completion
from deployer.serve.gate import Clock
from deployer.serve.smoke import first_difference


class Heard(Silent):
    """Keeps what is said; its time only moves when slept."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.time = 0.0

    def say(self, line: str) -> None:
        self.said.append(line)

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def up(host: Host) -> Host:
    applied(plan.plan(inventory(), host))
    return host


def with_table(*table: tuple[int, int, int]) -> Inventory:
    usual = inventory()
    return usual.model_copy(update={"tree": usual.tree.model_copy(update={"table": table})})


BY_BATCH = ((1, 2, 15), (3, 8, 0))


def smoked(host: Host, heard: Heard, subject: Inventory | None = None) -> None:
    smoke.smoke(subject or inventory(), host, heard, Clock(lambda: heard.time, heard.sleep))


def compared(asked: dict[str, Any]) -> bool:
    """Whether it is one of the requests whose tokens are compared, not the gate's."""
    return "logprobs" in asked


def test_smoke_on_a_stopped_service_fails_at_once(host: Host) -> None:
    with pytest.raises(DeployError, match="is inactive"):
        smoke.smoke(inventory(), host, Silent())


def test_a_service_that_is_up_is_proved_with_trees_and_compared(up: Host, heard: Heard) -> None:
    smoked(up, heard)
    assert heard.said[-1] == "greedy agreement of tree and plain decoding on 4 prompts"


@pytest.mark.parametrize("expect", [None, ""])
def test_without_an_expected_text_there_is_no_known_completion(host: Host, heard: Heard, expect: str | None) -> None:
    with pytest.raises(UsageError, match=r"\[serve\] expect is not set") as caught:
        smoked(host, heard, inventory(expect=expect))
    assert caught.value.where == "inventory staging"
    assert host.commands == [], "known before the host is asked"


def test_plain_decoding_compared_with_plain_decoding_proves_nothing(up: Host, machine: Machine, heard: Heard) -> None:
    """Trees for the gate's request and none for those that are compared."""
    machine.engine.drafted = lambda asked: 0 if compared(asked) else 10
    with pytest.raises(GateError, match=f"{metrics.TREES} did not rise during 4 completions"):
        smoked(up, heard)


def test_trees_compared_with_trees_prove_nothing_either(up: Host, machine: Machine, heard: Heard) -> None:
    """An engine that does not know the switch."""
    machine.engine.drafted, machine.engine.others = lambda asked: 10, (0, 0)
    with pytest.raises(GateError, match="rose during 4 completions whose requests switch the tree off") as caught:
        smoked(up, heard)
    assert "does not know the switch" in caught.value.remedy


def test_trees_that_may_be_somebody_elses_are_no_verdict_on_the_switch(
    up: Host, machine: Machine, heard: Heard
) -> None:
    turns = iter([10] * 4 + [0] * 4)
    machine.engine.drafted = lambda asked: next(turns) if asked.get("vllm_xargs") else 10
    smoked(up, heard)
    assert heard.said.count("busy; again in 10 s") == 1
    assert heard.said[-1].startswith("greedy agreement")
    machine.engine.drafted = lambda asked: 10
    with pytest.raises(GateError, match="busy: cannot be judged"):
        smoked(up, heard)


def test_another_text_than_plain_decodings_is_named(up: Host, machine: Machine, heard: Heard) -> None:
    machine.engine.tokens_of = lambda asked: ["qsuwy", " plain" if "vllm_xargs" in asked else " tree"]
    with pytest.raises(GateError, match=r"differ at token 1 of 'acegikmo': ' tree' against ' plain'"):
        smoked(up, heard)


def test_two_answers_without_tokens_do_not_agree(up: Host, machine: Machine, heard: Heard) -> None:
    machine.engine.tokens_of = lambda asked: [] if compared(asked) else ["qsuwy"]
    with pytest.raises(GateError, match="without its tokens' log-probabilities"):
        smoked(up, heard)


def test_a_busy_service_is_asked_again_until_it_can_be_judged(up: Host, machine: Machine, heard: Heard) -> None:
    """Others run for half a minute, with whom nothing is drafted; both halves of the proof wait for their end."""
    turns = iter([0, 0, 10, 0, 0, 0, 0])
    machine.engine.drafted = lambda asked: 0 if "vllm_xargs" in asked else next(turns, 10)
    smoked(up, heard, with_table(*BY_BATCH))
    assert heard.said.count("busy; again in 10 s") == 3
    assert heard.said[-1].startswith("greedy agreement")


@pytest.mark.parametrize("hidden", ["the gate's", "those compared"])
def test_a_service_that_stays_busy_is_not_called_proved(up: Host, machine: Machine, heard: Heard, hidden: str) -> None:
    machine.engine.drafted = lambda asked: 0 if hidden == "the gate's" or compared(asked) else 10
    with pytest.raises(GateError, match="busy: cannot be judged") as caught:
        smoked(up, heard, with_table(*BY_BATCH))
    assert "fewer run" in caught.value.remedy
    assert 30 <= heard.time < 60


def test_without_such_a_table_nobody_is_an_excuse(up: Host, machine: Machine, heard: Heard) -> None:
    machine.engine.drafted = lambda asked: 0
    with pytest.raises(GateError, match="without speculation"):
        smoked(up, heard, with_table((1, 2, 15), (3, 8, 7)))


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
