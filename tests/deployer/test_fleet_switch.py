"""What comes to a box from its routers, around a deployment over what serves: the host is the stand-in of the serve room."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from serving import Host, Machine, applied, inventory

from deployer.errors import GateError, PreflightError
from deployer.fleet.traffic import Busy
from deployer.plan.step import Plan, Progress
from deployer.serve import decoding, plan, rollback
from deployer.serve.options import from_yaml
from deployer.serve.records import Records
from deployer.serve.render import Engine, Place, render

ON_THE_NETWORK = {"address": "10.0.0.1", "allow": ["10.0.0.9", "10.1.0.0/16"]}


@dataclass
class Recorded:
    """A Traffic that writes into the machine's log what was asked of it, and whether the service ran then."""

    machine: Machine
    stubborn: bool = False
    left_out: tuple[str, ...] = ()
    asked: list[bool] = field(default_factory=list)

    def hold(self, service: Busy, progress: Progress) -> None:
        if self.stubborn:
            raise PreflightError("no other healthy box")
        self.machine.log.append("hold")

    def resume(self, progress: Progress) -> None:
        assert self.machine.active, "requests come only to a service that runs"
        self.machine.log.append("resume")

    def absent(self) -> tuple[str, ...]:
        return self.left_out


@pytest.fixture
def traffic(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """A first deployment serves, and the log begins after it."""
    recorded = Recorded(machine)

    def behind(inventory: object, *, strict: bool) -> Recorded:
        recorded.asked.append(strict)
        return recorded

    for module in (plan, rollback):
        monkeypatch.setattr(module, "behind", behind)
    applied(plan.plan(inventory(), Host(machine)))
    machine.log.clear()
    recorded.asked.clear()
    return recorded


def changed(host: Host, **options: Any) -> Plan:
    return plan.plan(inventory(options={"max-num-seqs": 4}), host, **options)


def test_requests_stop_before_the_service_does_and_come_again_after_its_proof(
    host: Host, machine: Machine, traffic: Recorded
) -> None:
    applied(changed(host, rolling=True))
    assert machine.log == ["hold", "stop", "start", "resume"]
    assert traffic.asked == [True]


def test_a_service_that_does_not_run_gets_none_and_is_not_held(host: Host, machine: Machine, traffic: Recorded) -> None:
    machine.active = False
    applied(changed(host))
    assert machine.log == ["stop", "start", "resume"]
    assert traffic.asked == [False]


def test_a_box_that_may_not_leave_serves_on_untouched(host: Host, machine: Machine, traffic: Recorded) -> None:
    traffic.stubborn = True
    with pytest.raises(PreflightError, match="no other healthy box"):
        applied(changed(host, rolling=True))
    assert machine.log == []
    assert machine.active


def test_after_a_failed_gate_requests_come_to_what_was_restored(
    host: Host, machine: Machine, traffic: Recorded
) -> None:
    machine.engine.sound = lambda options: options.get("max-num-seqs") != 4
    with pytest.raises(GateError, match="was restored and serves"):
        applied(changed(host))
    assert machine.log == ["hold", "stop", "start", "stop", "start", "resume"]


def test_when_the_switch_cannot_be_prepared_requests_come_again_before_anything_stopped(
    host: Host, machine: Machine, traffic: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*deployments: object) -> None:
        raise PreflightError("no space left", where="box", remedy="make room")

    made = changed(host)
    monkeypatch.setattr(Records, "stage", full)
    with pytest.raises(PreflightError, match="no space left"):
        applied(made)
    assert machine.log == ["hold", "resume"]
    assert machine.active


def test_a_rollback_is_no_different(host: Host, machine: Machine, traffic: Recorded) -> None:
    applied(changed(host))
    machine.log.clear()
    applied(rollback.plan(inventory(), host, rolling=True))
    assert machine.log == ["hold", "stop", "start", "resume"]


def test_a_box_that_a_killed_deployment_left_out_is_put_back_by_the_next_one(
    host: Host, machine: Machine, traffic: Recorded
) -> None:
    assert plan.plan(inventory(), host).pending == ()
    traffic.left_out = ("edge",)
    again = plan.plan(inventory(), host)
    assert [(step.title, step.reason) for step in again.pending] == [("router", "gets no requests from edge")]
    applied(again)
    assert machine.log == ["resume"]


def test_a_box_on_the_network_lets_in_whom_it_allows_and_itself() -> None:
    subject = inventory(**ON_THE_NETWORK)
    engine = Engine("/venv", "/models/target", "/models/drafter", decoding.served(subject))
    files = render(subject, Place.of_service(subject), engine)
    assert from_yaml(files.config)["host"] == "0.0.0.0"
    assert "IPAddressDeny=any\nIPAddressAllow=localhost 10.0.0.1 10.0.0.9/32 10.1.0.0/16\n" in files.dropin
    arm = render(subject, Place("bench", "bench", "/c", "/e", 9000), engine)
    assert from_yaml(arm.config)["host"] == "127.0.0.1"
    assert "IPAddressAllow=localhost\n" in arm.dropin
