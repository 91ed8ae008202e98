"""Deploying: what is written, started and remembered, and what is found before anything stops."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from serving import Host, Machine, active, applied, inventory, without_drafts

from deployer.errors import PreflightError
from deployer.serve import plan
from deployer.serve.gate import Clock
from deployer.serve.options import TABLE
from deployer.serve.status import status
from deployer.serve.tuned import Tuned, text


def test_a_first_deployment_writes_starts_and_is_remembered_when_it_has_proved_itself(
    host: Host, machine: Machine
) -> None:
    made = plan.plan(inventory(), host)
    assert [step.title for step in made.pending] == ["files", "start", "gate"]
    assert machine.log == [], "planning changes nothing"
    applied(made)
    assert machine.active
    assert machine.options()["speculative-config"]["method"] == "dflash"
    assert active(host).outcome == "serving"
    assert active(host).by.count("@") == 1


def test_a_second_deployment_has_nothing_to_do_and_says_why(host: Host) -> None:
    applied(plan.plan(inventory(), host))
    again = plan.plan(inventory(), host)
    assert again.pending == ()
    assert "has proved itself" in again.steps[-1].reason


def test_what_was_tuned_is_said_with_what_it_was_measured_with_and_a_change_of_it_is_a_stop_start(
    host: Host, machine: Machine, tmp_path: Path
) -> None:
    applied(plan.plan(inventory(), host))
    digest, file = "f" * 64, tmp_path / "staging.tuned.toml"
    host.answers = {re.compile("sha256sum$"): f"{digest}  -\n"} | host.answers
    made = Tuned(
        kind="tree",
        tokens=31,
        table=((1, 2, 31), (3, 8, 7)),
        host="staging",
        when="today",
        release="r1",
        drafter=digest,
    )
    serving = inventory()
    serving = serving.model_copy(update={"tree": serving.tree.model_copy(update={"tuned": file})})

    def said(values: Tuned) -> str:
        file.write_text(text(values, ("why",)))
        planned = plan.plan(serving, host)
        assert [step.title for step in planned.pending] == ["files", "start", "gate"]
        return next(step.reason for step in planned.steps if step.title == "decoding")

    assert said(made) == "tree, budget 31 up to 2 requests, 7 above: staging.tuned.toml, measured today"
    old = made.model_copy(update={"release": "r0", "drafter": "0" * 64, "host": "ct129"})
    assert said(old).endswith("today on ct129, with release r0 and another drafter: tune again when it can be spared")
    applied(plan.plan(serving, host))
    assert machine.options()["speculative-config"][TABLE] == [[1, 2, 31], [3, 8, 7]]
    assert plan.plan(serving, host).pending == ()


def test_a_host_on_which_no_draft_pays_serves_without_any_and_proves_itself_so(
    host: Host, machine: Machine, tmp_path: Path
) -> None:
    host.answers = {re.compile("sha256sum$"): "d  -\n"} | host.answers
    applied(plan.plan(without_drafts(tmp_path / "staging.tuned.toml"), host))
    assert "speculative-config" not in machine.options()
    assert (active(host).decoding, active(host).outcome) == ("autoregressive", "serving")


def test_a_service_stopped_by_hand_is_started_and_proved_again(host: Host, machine: Machine) -> None:
    applied(plan.plan(inventory(), host))
    machine.active = False
    assert [step.reason for step in plan.plan(inventory(), host).pending][1] == "the service is inactive"


def test_a_file_changed_on_the_host_is_named_and_put_right(host: Host, machine: Machine) -> None:
    applied(plan.plan(inventory(), host))
    machine.files["/etc/ddtree/ddtree-vllm.yaml"] += b"dtype: float16\n"
    again = plan.plan(inventory(), host)
    assert "by hand: /etc/ddtree/ddtree-vllm.yaml" in next(step.reason for step in again.steps if step.title == "start")
    applied(again)
    assert machine.options()["dtype"] == "bfloat16"


def test_a_busy_port_is_found_before_anything_stops(host: Host, machine: Machine) -> None:
    machine.foreign_port = (
        'LISTEN 0 9 127.0.0.1:8000 0.0.0.0:* users:(("vllm",pid=9,fd=3))\n0::/system.slice/mtp.service\n'
    )
    with pytest.raises(PreflightError, match=r"taken by vllm \(pid 9\) of mtp\.service") as caught:
        plan.plan(inventory(), host)
    assert "--replace" in caught.value.remedy
    assert plan.plan(inventory(), host, replace="mtp.service").pending


def test_a_model_that_was_not_pushed_is_found_before_anything_stops(host: Host, machine: Machine) -> None:
    machine.models = False
    with pytest.raises(PreflightError, match="there is no model in"):
        plan.plan(inventory(), host)


def test_another_option_alone_is_one_stop_and_start_and_the_plan_names_it(host: Host, machine: Machine) -> None:
    applied(plan.plan(inventory(options={"max-num-seqs": 8, "dtype": "bfloat16"}), host))
    machine.log.clear()
    made = plan.plan(inventory(options={"max-num-seqs": 4, "enforce-eager": True}), host)
    reason = next(step.reason for step in made.steps if step.title == "start")
    assert (
        'another configuration: max-num-seqs 8 -> 4, dtype "bfloat16" -> unset, enforce-eager unset -> true' in reason
    )
    assert reason.endswith("no push, no install, one stop-start")
    applied(made)
    assert machine.log == ["stop", "start"]


def test_another_variable_is_said_without_its_value(host: Host) -> None:
    applied(plan.plan(inventory(), host))
    made = plan.plan(inventory(environment={"NCCL_P2P_DISABLE": "1"}), host)
    reason = next(step.reason for step in made.steps if step.title == "start")
    assert "the unit, its drop-in or its variables differ" in reason
    assert "NCCL" not in reason


class TestSofterConfinement:
    """A container without nesting: systemd ends a unit with mount namespaces with 226/NAMESPACE."""

    def test_the_plan_says_what_is_left_out_and_the_drop_in_leaves_it_out(self, host: Host, machine: Machine) -> None:
        machine.unit = "unit_no_nesting.txt"
        made = plan.plan(inventory(), host)
        said = next(step for step in made.steps if step.title == "confinement")
        assert not said.needed
        assert "cannot carry out" in said.reason
        assert "ProtectSystem" in said.reason
        applied(made)
        dropin = machine.files["/etc/systemd/system/ddtree-vllm.service.d/10-build.conf"].decode()
        assert "\nProtectSystem=no\n" in dropin
        assert active(host).softer[:1] == ("ProtectSystem",)
        rows = dict(status(inventory(), host, Clock(sleep=lambda _: None)))
        assert rows["confinement"].startswith("softer: without ProtectSystem, ")

    def test_a_host_that_has_learned_it_gets_the_whole_confinement_back(self, host: Host, machine: Machine) -> None:
        machine.unit = "unit_no_nesting.txt"
        applied(plan.plan(inventory(), host))
        assert plan.plan(inventory(), host).pending == ()
        machine.unit = "unit_without_gpus.txt"
        made = plan.plan(inventory(), host)
        assert [step.title for step in made.pending] == ["files", "start", "gate"]
        applied(made)
        assert active(host).softer == ()
        assert b"Softer" not in machine.files["/etc/systemd/system/ddtree-vllm.service.d/10-build.conf"]

    def test_what_no_softer_unit_mends_is_refused_before_anything_stops(self, host: Host, machine: Machine) -> None:
        applied(plan.plan(inventory(), host))
        machine.unit, machine.log = "unit_memlock_refused.txt", []
        assert plan.plan(inventory(), host).pending == (), "what runs is not touched"
        with pytest.raises(PreflightError, match=r"the unit could not start: ulimits: .*205/LIMITS"):
            plan.plan(inventory(served_model_name="new"), host)
        assert machine.log == []
