"""The way back when a new deployment does not prove itself, whatever ends it."""

from __future__ import annotations

import signal

import pytest
from serving import ROOT, Host, Machine, active, applied, broken, inventory

from deployer.errors import GateError, RollbackError
from deployer.plan.apply import Silent, run
from deployer.plan.step import Plan
from deployer.serve import plan


def test_a_failed_gate_restores_configuration_and_release_of_what_ran_before(host: Host, machine: Machine) -> None:
    applied(plan.plan(inventory(), host))
    first, before = active(host), dict(machine.files)
    machine.engine.sound = broken
    machine.links[f"{ROOT}/current"] = f"{ROOT}/releases/r2"
    with pytest.raises(GateError, match="was restored and serves") as caught:
        applied(plan.plan(inventory(options={"max-num-seqs": 3}), host))
    assert caught.value.exit_code == 6
    assert "broken on purpose" in caught.value.remedy
    assert machine.active
    assert machine.links[f"{ROOT}/current"] == f"{ROOT}/releases/r1"
    assert {path: data for path, data in machine.files.items() if path.startswith("/etc/")} == {
        path: data for path, data in before.items() if path.startswith("/etc/")
    }
    assert active(host) == first


def test_wrong_text_counts_as_a_failed_gate(host: Host, machine: Machine) -> None:
    applied(plan.plan(inventory(), host))
    with pytest.raises(GateError, match="without 'something else'"):
        applied(plan.plan(inventory(expect="something else", served_model_name="new"), host))
    assert machine.options()["served-model-name"] == ["tiny"]


def test_a_failed_first_deployment_leaves_the_service_stopped_and_its_files_gone(host: Host, machine: Machine) -> None:
    machine.engine.sound = lambda options: False
    with pytest.raises(GateError, match="nothing ran before"):
        applied(plan.plan(inventory(), host))
    assert not machine.active
    assert not [path for path in machine.files if path.startswith("/etc/")]


def test_when_nothing_can_be_restored_a_person_is_needed(host: Host, machine: Machine) -> None:
    applied(plan.plan(inventory(), host))
    machine.engine.sound = lambda options: False
    with pytest.raises(RollbackError) as caught:
        applied(plan.plan(inventory(served_model_name="new"), host))
    assert caught.value.exit_code == 7


def test_what_was_stopped_before_is_not_started_by_a_way_back(host: Host, machine: Machine) -> None:
    applied(plan.plan(inventory(), host))
    machine.active, machine.engine.sound = False, broken
    with pytest.raises(GateError, match="is stopped, as it was"):
        applied(plan.plan(inventory(options={"max-num-seqs": 3}), host))
    assert not machine.active


def test_a_foreign_unit_is_stopped_last_and_started_again_when_the_gate_fails(host: Host, machine: Machine) -> None:
    machine.engine.sound = lambda options: False
    with pytest.raises(GateError, match=r"mtp\.service was started again"):
        applied(plan.plan(inventory(), host, replace="mtp.service"))
    changes = [command for command in host.commands if "mtp.service" in command]
    assert changes[0].startswith("sudo u=mtp.service;")
    assert "systemctl stop" in changes[0]
    assert changes[-1] == "sudo systemctl start mtp.service"
    assert not any("disable" in command for command in changes)


def test_an_interrupted_gate_restores_and_lets_the_interruption_through(host: Host, machine: Machine) -> None:
    applied(plan.plan(inventory(), host))
    made = plan.plan(inventory(served_model_name="new"), host)

    class Interrupted(Silent):
        def say(self, line: str) -> None:
            if line.startswith("completion"):
                self.say = lambda line: None  # type: ignore[method-assign]
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(made, Interrupted())
    assert machine.active
    assert machine.options()["served-model-name"] == ["tiny"]
    assert machine.log == 3 * ["stop", "start"], "the first, the one that was cut, and the way back"


@pytest.mark.parametrize("first", [KeyboardInterrupt(), RuntimeError("a bug of ours")])
def test_whatever_ends_the_gate_and_whoever_presses_again_what_ran_before_runs(
    first: BaseException, host: Host, machine: Machine
) -> None:
    """The second Ctrl-C comes while the old files are put back: it takes effect when the old service has been started."""
    applied(plan.plan(inventory(), host))
    made = plan.plan(inventory(served_model_name="new"), host)

    class Impatient(Silent):
        def say(self, line: str) -> None:
            if line.startswith("completion"):
                raise first
            if line.startswith("restoring 2"):
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(made, Impatient())
    assert machine.active
    assert machine.options()["served-model-name"] == ["tiny"]


class Away(Silent):
    """The line is lost for a moment when `line` is said: the host goes back, and the deployer can reach it again."""

    def __init__(self, host: Host, line: str) -> None:
        self.host, self.line = host, line

    def say(self, line: str) -> None:
        if line.startswith(self.line):
            self.host.run("if test -e /opt/ddtree/state/way-back.sh", sudo=True)


@pytest.mark.parametrize("line", ["starting", "/health", "completion"])
def test_a_host_that_went_back_meanwhile_does_not_prove_the_old_one_in_the_new_ones_place(
    host: Host, machine: Machine, line: str
) -> None:
    applied(plan.plan(inventory(), host))
    first = active(host)
    with pytest.raises(GateError, match=r"the host went back by itself; .* was restored and serves"):
        run(plan.plan(inventory(options={"max-num-seqs": 3}), host), Away(host, line))
    assert active(host) == first
    assert machine.options()["max-num-seqs"] != 3
    assert machine.active


def test_a_full_disk_keeps_nobody_from_going_back(host: Host, machine: Machine) -> None:
    """How it ended cannot be written down; what served before serves again all the same."""
    applied(plan.plan(inventory(), host))
    made = plan.plan(inventory(options={"max-num-seqs": 3}), host)
    for step in made.pending[:-1]:
        assert step.action is not None
        step.action(Silent())
    machine.full = True
    with pytest.raises(GateError, match=r"No space left on device; .* was restored and serves"):
        run(Plan(made.host, made.pending[-1:]), Silent())
    assert machine.options()["max-num-seqs"] != 3
    assert machine.active
