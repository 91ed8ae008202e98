"""`rollback`: to the deployment before, or to any that has served."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from serving import ROOT, Host, Machine, active, applied, inventory, without_drafts

from deployer.errors import GateError, PreflightError, UsageError
from deployer.serve import plan, rollback


def test_rollback_goes_to_the_one_before_and_back_again(
    host: Host, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied(plan.plan(inventory(), host))
    applied(plan.plan(inventory(served_model_name="new"), host))
    applied(rollback.plan(inventory(served_model_name="new"), host))
    assert machine.options()["served-model-name"] == ["tiny"]
    assert active(host).outcome == "serving"


def test_what_served_without_drafts_comes_back_by_rollback_and_by_a_failed_gate(
    host: Host, machine: Machine, tmp_path: Path
) -> None:
    """Nobody asks it for drafts then."""
    host.answers = {re.compile("sha256sum$"): "d  -\n"} | host.answers
    plain = without_drafts(tmp_path / "staging.tuned.toml")
    applied(plan.plan(plain, host))
    applied(plan.plan(inventory(), host))
    applied(rollback.plan(inventory(), host))
    assert "speculative-config" not in machine.options()
    with pytest.raises(GateError, match="was restored and serves"):
        applied(plan.plan(inventory(expect="something else"), host))
    assert "speculative-config" not in machine.options()


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
