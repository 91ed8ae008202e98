"""A box leaves its routers before its service stops, and comes back: against a stand-in router on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from standin_router import Here, StandInRouter, door, listening, ticking

from deployer.errors import GateError, PreflightError
from deployer.fleet.api import Api, Worker
from deployer.fleet.traffic import RUNNING, WAITING, Door, Routed
from deployer.serve.metrics import Counters

ANN, BOB = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


@dataclass
class Heard:
    """A Progress that keeps what was said."""

    lines: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def bytes(self, done: int, total: int) -> None: ...

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass
class Engine:
    """A stand-in whose running and waiting requests are listed, one pair for each time it is asked; the last stays."""

    requests: list[tuple[int, int]]
    asked: int = 0

    def counters(self) -> Counters:
        self.asked += 1
        running, waiting = self.requests.pop(0) if len(self.requests) > 1 else self.requests[0]
        return Counters({RUNNING: running, WAITING: waiting}, {}, {})


class Hung:
    def counters(self) -> Counters:
        raise GateError("/metrics answers 0: timed out")


@pytest.fixture
def router() -> Iterator[StandInRouter]:
    with listening(StandInRouter({ANN: True, BOB: True})) as made:
        yield made


@pytest.fixture
def heard() -> Heard:
    return Heard()


def routed(*doors: Door, strict: bool = True) -> Routed:
    return Routed(ANN, doors, strict, ticking())


def test_a_box_leaves_and_is_idle_twice_in_a_row_before_it_may_stop(router: StandInRouter, heard: Heard) -> None:
    engine = Engine([(3, 1), (0, 1), (0, 0), (1, 0), (0, 0), (0, 0)])
    routed(door(router)).hold(engine, heard)
    assert router.boxes == {BOB: True}
    assert engine.asked == 6
    assert "4 requests still run here" in heard.lines


def test_it_comes_back_and_a_second_time_asks_for_nothing(router: StandInRouter, heard: Heard) -> None:
    traffic = routed(door(router))
    traffic.hold(Engine([(0, 0)]), heard)
    assert traffic.absent() == ("edge",)
    traffic.resume(heard)
    assert router.boxes == {BOB: True, ANN: True}
    assert traffic.absent() == ()
    before = len(router.asked)
    traffic.resume(heard)
    assert router.asked[before:] == ["GET /workers"]


@pytest.mark.parametrize("others", [{}, {BOB: False}])
def test_the_last_healthy_box_does_not_leave_in_a_roll(heard: Heard, others: dict[str, bool]) -> None:
    with listening(StandInRouter({ANN: True, **others})) as router:
        with pytest.raises(PreflightError, match="no other healthy box"):
            routed(door(router)).hold(Engine([(0, 0)]), heard)
        assert ANN in router.boxes
        routed(door(router), strict=False).hold(Engine([(0, 0)]), heard)
        assert ANN not in router.boxes
        assert "refuses requests until this one serves again" in heard.text


def test_requests_that_do_not_end_are_not_cut_in_a_roll_and_the_box_is_put_back(
    router: StandInRouter, heard: Heard
) -> None:
    with pytest.raises(PreflightError, match="2 requests still run here after 60 s"):
        routed(door(router)).hold(Engine([(2, 0)]), heard)
    assert router.boxes == {BOB: True, ANN: True}


def test_without_rolling_they_have_vllms_own_drain_left(router: StandInRouter, heard: Heard) -> None:
    routed(door(router), strict=False).hold(Engine([(2, 0)]), heard)
    assert "they have vLLM's own drain left" in heard.text


def test_an_interrupt_while_it_waits_puts_the_box_back(router: StandInRouter, heard: Heard) -> None:
    class Interrupted:
        def counters(self) -> Counters:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        routed(door(router)).hold(Interrupted(), heard)
    assert router.boxes == {BOB: True, ANN: True}


def test_an_engine_that_does_not_answer_is_not_waited_for(router: StandInRouter, heard: Heard) -> None:
    routed(door(router)).hold(Hung(), heard)
    assert "there is nothing to wait for" in heard.text


def test_a_router_that_does_not_run_holds_nobody_up(heard: Heard) -> None:
    nobody = door(StandInRouter({}, port=1))
    traffic = routed(nobody)
    traffic.hold(Engine([(5, 0)]), heard)
    traffic.resume(heard)
    assert traffic.absent() == ()
    assert "nothing comes through it" in heard.text


def test_a_service_that_stops_anyway_leaves_where_it_can_and_what_it_cannot_is_said(
    router: StandInRouter, heard: Heard
) -> None:
    other = StandInRouter({ANN: True, BOB: True}, refusal="not now")
    with listening(other):
        routed(door(other, name="back"), door(router)).leave(Engine([(1, 0), (0, 0)]), heard)
    assert router.boxes == {BOB: True}
    assert "router back could not be told: the router answers 500: not now; it notices" in heard.text
    assert heard.lines[-1] == "1 requests still run here", "and who was asking is waited for"


def test_something_else_on_the_routers_port_is_named(heard: Heard) -> None:
    other = StandInRouter({}, speaks="<html>hello</html>")
    with listening(other):
        with pytest.raises(PreflightError, match="what answers is no vllm-router: '<html>hello"):
            routed(door(other)).hold(Engine([(0, 0)]), heard)
        routed(door(other)).leave(Engine([(0, 0)]), heard)
    assert "could not be told" in heard.text


def test_of_two_routers_the_first_gets_the_box_back_when_the_second_refuses(
    router: StandInRouter, heard: Heard
) -> None:
    refusing = StandInRouter({ANN: True, BOB: True}, refusal="not now")
    with listening(refusing), pytest.raises(PreflightError, match="the router answers 500: not now"):
        routed(door(router), door(refusing, name="back")).hold(Engine([(0, 0)]), heard)
    assert router.boxes == {BOB: True, ANN: True}


def test_a_box_that_the_router_does_not_reach_is_an_error_with_the_likely_cause(heard: Heard) -> None:
    router = StandInRouter({BOB: True}, dead=frozenset({ANN}))
    with listening(router), pytest.raises(PreflightError, match="does not send to") as raised:
        routed(door(router)).resume(heard)
    assert "[serve] allow" in raised.value.remedy


def test_the_routers_list_is_read_as_it_prints_it(router: StandInRouter) -> None:
    router.boxes[BOB] = False
    assert Api(Here(router.port)).workers() == (Worker(ANN, True), Worker(BOB, False))
    assert Api(Here(1)).workers() is None
