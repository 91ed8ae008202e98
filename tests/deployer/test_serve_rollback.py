"""`rollback`: to the deployment before, or to any that has served."""

from __future__ import annotations

import pytest
from serving import ROOT, Host, Machine, active, applied, inventory

from deployer.errors import PreflightError, UsageError
from deployer.serve import plan, rollback


def test_rollback_goes_to_the_one_before_and_back_again(
    host: Host, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied(plan.plan(inventory(), host))
    applied(plan.plan(inventory(served_model_name="new"), host))
    applied(rollback.plan(inventory(served_model_name="new"), host))
    assert machine.options()["served-model-name"] == ["tiny"]
    assert active(host).outcome == "serving"


def test_rollback_names_what_it_knows(host: Host) -> None:
    with pytest.raises(PreflightError, match="no earlier deployment"):
        rollback.plan(inventory(), host)
    applied(plan.plan(inventory(), host))
    with pytest.raises(UsageError, match="no deployment or release r9"):
        rollback.plan(inventory(), host, to="r9")
    assert rollback.plan(inventory(), host, to="r1").pending == ()


def test_rollback_to_a_removed_release_is_refused_before_anything_stops(host: Host, machine: Machine) -> None:
    applied(plan.plan(inventory(), host))
    applied(plan.plan(inventory(served_model_name="new"), host))
    machine.releases = ("r2",)
    with pytest.raises(PreflightError, match="no longer on the host"):
        rollback.plan(inventory(), host)


def test_rollback_to_any_kept_release_is_one_stop_and_one_start(host: Host, machine: Machine) -> None:
    applied(plan.plan(inventory(), host))
    for release, name in (("r2", "second"), ("r3", "third")):
        machine.releases = (*machine.releases, "r3")
        machine.links[f"{ROOT}/current"] = f"{ROOT}/releases/{release}"
        applied(plan.plan(inventory(served_model_name=name), host))
    assert active(host).release == "r3"
    machine.log.clear()
    made = rollback.plan(inventory(), host, to="r1")
    assert [step.title for step in made.pending] == ["start", "gate"]
    applied(made)
    assert machine.log == ["stop", "start"]
    assert machine.links[f"{ROOT}/current"] == f"{ROOT}/releases/r1"
    assert machine.options()["served-model-name"] == ["tiny"]
    assert active(host).release == "r1"
