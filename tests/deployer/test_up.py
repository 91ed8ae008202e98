"""up: stages planned one after the other, one lock for all, and none when there is nothing to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from material import inventory_for

from deployer.cli import up
from deployer.cli.host import Builder, Host
from deployer.errors import InstallError, PreflightError
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.plan.lock import look
from deployer.plan.step import Plan, Progress, Step
from deployer.transport.base import Transport
from deployer.transport.local import LocalTransport


@pytest.fixture
def host(tmp_path: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(Layout, "lock", property(lambda self: f"{self.root}-lock"))
    (tmp_path / "root").mkdir()
    return Host(inventory_for(tmp_path, drafter), LocalTransport("here"))


def making(file: Path, after: Path | None = None, error: Exception | None = None) -> Builder:
    """A stage that makes a file; `after` must be there when it is planned, `error` ends its action."""

    def build(inventory: Inventory, transport: Transport) -> Plan:
        if after is not None and not after.exists():
            raise PreflightError(f"{after.name} is not there")

        def action(progress: Progress) -> None:
            if error is not None:
                raise error
            assert look(transport, Layout.of(inventory)) is not None
            file.touch()

        done = file.exists()
        step = Step(file.name, f"make {file.name}", "it is there" if done else "missing", None if done else action)
        return Plan(inventory.name, (step,))

    return build


def audit(host: Host) -> list[dict[str, object]]:
    path = Path(host.layout.audit)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_each_stage_is_planned_after_the_one_before_it_was_applied(host: Host, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    stages = [("first", making(first)), ("second", making(second, after=first))]
    assert up.climb(host, stages)
    assert second.exists()
    assert [line["steps"] for line in audit(host)] == [["first: make first", "second: make second"]]
    assert look(host.transport, host.layout) is None


def test_a_second_run_takes_no_lock_and_says_why(
    host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = [("first", making(tmp_path / "first"))]
    up.climb(host, stages)
    Path(host.layout.lock).mkdir()  # somebody else's: it would be in the way
    assert not up.climb(host, stages)
    assert "= first: make first (it is there)" in capsys.readouterr().out
    assert len(audit(host)) == 1


def test_a_stage_that_fails_ends_it_and_the_lock_is_released(host: Host, tmp_path: Path) -> None:
    stages = [
        ("first", making(tmp_path / "first")),
        ("second", making(tmp_path / "second", error=InstallError("no wheel"))),
        ("third", making(tmp_path / "third")),
    ]
    with pytest.raises(InstallError):
        up.climb(host, stages)
    assert not (tmp_path / "third").exists()
    assert audit(host)[0]["steps"] == ["first: make first"]
    assert audit(host)[0]["outcome"] == "InstallError: no wheel"
    assert look(host.transport, host.layout) is None


def test_a_plan_of_everything_says_what_is_decided_later(
    host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "first"
    stages = [("first", making(first)), ("second", making(tmp_path / "second", after=first))]
    up.foresee(host, stages)
    shown = capsys.readouterr().out
    assert "+ first: make first" in shown
    assert "? second: decided after first (first is not there)" in shown
    assert not first.exists()


def test_a_host_that_cannot_do_it_is_an_error_when_nothing_comes_before(host: Host, tmp_path: Path) -> None:
    with pytest.raises(PreflightError):
        up.foresee(host, [("second", making(tmp_path / "second", after=tmp_path / "first"))])


def test_its_limit_is_pushs_and_a_model_on_the_hub_comes_after_the_install(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Sequence[up.Stage]] = []
    monkeypatch.setattr(up, "reached", lambda *_: nullcontext(host))
    monkeypatch.setattr(up, "examine", lambda _: None)
    monkeypatch.setattr(up, "foresee", lambda _, stages: shown.append(stages))
    up.up("box", limit=2.5, plan=True)
    assert [name for name, _ in shown[0]] == ["push", "install", "fetch", "bench", "serve"]
    push = shown[0][0][1]
    assert isinstance(push, partial)
    assert push.keywords == {"limit": 2.5}
