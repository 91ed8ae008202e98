"""The gate, phase by phase, against a scripted service: a stand-in for a host, with time that only moves when slept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from deployer.errors import GateError
from deployer.facts.service import ServiceState
from deployer.serve import metrics
from deployer.serve.decoding import Decoding
from deployer.serve.endpoint import Answer, Completion
from deployer.serve.gate import Clock, Proof, Wanted, prove
from deployer.serve.metrics import Counters

RUNNING = ServiceState("loaded", "active", "running", 7, 0, "id", "today", "r1", ("r1",))
WANTED = Wanted("tiny", "who?", "the cat", 2.0, Decoding("tree", 15), 100.0)


def exposition(drafts: int, accepted: int, trees: int = 0, off_spine: int = 0) -> str:
    labels = '{engine="0",model_name="tiny"}'
    text = f"{metrics.DRAFTS}{labels} {drafts}.0\n{metrics.ACCEPTED}{labels} {accepted}.0\n"
    if trees:
        text += f"{metrics.TREES} {trees}.0\n{metrics.NODES} {15 * trees}.0\n{metrics.OFF_SPINE} {off_spine}.0\n"
    return text


@dataclass
class Scripted:
    """A service whose answers are given; a list gives one per question and repeats its last."""

    states: list[ServiceState] = field(default_factory=lambda: [RUNNING])
    healths: list[Answer] = field(default_factory=lambda: [Answer(0, "refused"), Answer(200, "")])
    names: tuple[str, ...] = ("tiny",)
    text: str = "it is the cat"
    scrapes: list[str] = field(default_factory=lambda: [exposition(5, 9), exposition(15, 39, 10, 4)])
    lines: tuple[str, ...] = ("INFO loading",)
    time: float = 0.0
    where: str = "box, port 8000"

    def state(self) -> ServiceState:
        return self._next(self.states)

    def journal(self, lines: int) -> tuple[str, ...]:
        return self.lines[-lines:]

    def ask(self, path: str) -> Answer:
        assert path == "/health"
        return self._next(self.healths)

    def models(self) -> tuple[str, ...]:
        return self.names

    def complete(self, prompt: str, tokens: int, timeout: float) -> Completion:
        assert prompt == WANTED.prompt
        return Completion(self.text, (), ())

    def counters(self) -> Counters:
        return metrics.parse(self._next(self.scrapes))

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    @staticmethod
    def _next(some: list[Any]) -> Any:
        return some.pop(0) if len(some) > 1 else some[0]


def proved(subject: Scripted, wanted: Wanted = WANTED, said: list[str] | None = None) -> Proof:
    return prove(subject, wanted, (said if said is not None else []).append, Clock(lambda: subject.time, subject.sleep))


def test_a_service_that_answers_and_speculates_is_proved_by_the_differences_of_its_counters() -> None:
    proof = proved(Scripted())
    assert proof.acceptance_length == 4.0, "1 + (39 - 9) / (15 - 5)"
    assert (proof.trees, proof.off_spine, proof.judged) == (10, 4, True)
    assert proof.text == "it is the cat"


def test_health_alone_is_not_enough() -> None:
    with pytest.raises(GateError, match="without 'the cat'"):
        proved(Scripted(text="garbage"))


def test_an_empty_completion_is_refused_even_when_no_text_is_expected() -> None:
    with pytest.raises(GateError, match="empty"):
        proved(Scripted(text="  "), replace(WANTED, expect=None))


def test_another_model_under_the_port_is_named() -> None:
    with pytest.raises(GateError, match="lists other, not tiny"):
        proved(Scripted(names=("other",)))


def test_text_without_drafts_fails_and_the_counter_is_named() -> None:
    with pytest.raises(GateError, match=metrics.DRAFTS):
        proved(Scripted(scrapes=[exposition(5, 9)]))


def test_a_tree_that_silently_became_a_chain_fails() -> None:
    with pytest.raises(GateError, match=metrics.TREES):
        proved(Scripted(scrapes=[exposition(5, 9), exposition(15, 39)]))


def test_counters_that_the_workers_publish_late_are_waited_for() -> None:
    late = Scripted(scrapes=[exposition(5, 9), exposition(15, 39), exposition(15, 39), exposition(15, 39, 10, 4)])
    assert proved(late).trees == 10


def test_a_chain_needs_no_trees_and_plain_decoding_no_drafts() -> None:
    chain = replace(WANTED, decoding=Decoding("chain", 7))
    assert proved(Scripted(scrapes=[exposition(0, 0), exposition(10, 30)]), chain).trees == 0
    plain = replace(WANTED, decoding=Decoding("autoregressive", 0))
    assert proved(Scripted(scrapes=[""]), plain).acceptance_length is None


def test_right_text_at_a_low_acceptance_length_is_a_wrong_drafter() -> None:
    with pytest.raises(GateError, match=r"acceptance length 1\.30 is below 2") as caught:
        proved(Scripted(scrapes=[exposition(0, 0), exposition(10, 3, 10)]))
    assert "target_layer_ids" in caught.value.remedy


def test_a_service_that_restarts_while_it_starts_fails_at_once_with_the_line_that_says_why() -> None:
    lines = ("INFO loading", "ValueError: no such layer", "RuntimeError: Engine core initialization failed.", "bye")
    subject = Scripted(states=[RUNNING, replace(RUNNING, restarts=1)], lines=lines)
    with pytest.raises(GateError, match="ended while it was starting") as caught:
        proved(subject)
    assert "no such layer" in caught.value.remedy
    assert subject.time == 0.0


def test_a_service_that_never_answers_fails_at_the_gates_own_deadline() -> None:
    subject = Scripted(healths=[Answer(0, "refused")])
    with pytest.raises(GateError, match="/health did not answer"):
        proved(subject)
    assert 100 <= subject.time <= 103


def test_a_silent_log_is_said_once() -> None:
    said: list[str] = []
    with pytest.raises(GateError):
        proved(Scripted(healths=[Answer(0, "refused")]), replace(WANTED, timeout=400.0), said)
    assert [line for line in said if line.startswith("silent")] == [
        "silent for 120 s; with two GPUs suspect NCCL (try NCCL_P2P_DISABLE=1)"
    ]


# A table that drafts nothing in a large batch.

BY_BATCH = replace(WANTED, decoding=Decoding("tree", 31, ((1, 2, 31), (3, 8, 0))))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{metrics.RUNNING} 4.0\n", f"{metrics.RUNNING} 4.0\n"),
        (f"{metrics.RUNNING} 4.0\n", f"{metrics.RUNNING} 0.0\n"),
        (f"{metrics.GENERATED} 100.0\n", f"{metrics.GENERATED} 400.0\n"),
    ],
)
def test_beside_others_with_whom_nothing_is_drafted_a_healthy_service_is_not_accused(before: str, after: str) -> None:
    """As `smoke` on a box under load."""
    drafted = exposition(5, 9, 3, 1)
    said = list[str]()
    proof = proved(Scripted(scrapes=[drafted + before, drafted + after]), BY_BATCH, said)
    assert (proof.acceptance_length, proof.trees, proof.judged) == (None, 0, False)
    assert "whether drafts are accepted cannot be seen now" in said[-1]
    with pytest.raises(GateError, match="without speculation"):
        proved(Scripted(scrapes=[drafted + before, drafted + after]))


def test_alone_it_has_to_draft() -> None:
    alone = exposition(5, 9, 3, 1) + f"{metrics.RUNNING} 0.0\n"
    with pytest.raises(GateError, match="without speculation"):
        proved(Scripted(scrapes=[alone]), BY_BATCH)
