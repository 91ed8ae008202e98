"""Plans: carried out in order under the lock, with a line in the audit log; nothing is left when nothing is done."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fakes import FakeTransport
from recorder import Recorder

from deployer.errors import DeployError, Exit, LockedError
from deployer.plan.apply import apply
from deployer.plan.layout import Layout
from deployer.plan.lock import Owner, break_it, held, look
from deployer.plan.step import Plan, Progress, Step
from deployer.transport.base import Result
from deployer.transport.local import LocalTransport


class Here(Layout):
    """A layout whose lock is beneath its root: the test's own folder."""

    @property
    def lock(self) -> str:
        return f"{self.root}/run/lock"


@pytest.fixture
def layout(tmp_path: Path) -> Here:
    return Here(root=str(tmp_path / "root"), service="ddtree-vllm", user="ddtree")


def noting(notes: list[str], title: str) -> Step:
    def action(progress: Progress) -> None:
        progress.say(f"doing {title}")
        notes.append(title)

    return Step("verb", title, "it is missing", action)


def test_pending_steps_run_in_order_and_satisfied_ones_say_why(layout: Here) -> None:
    notes: list[str] = []
    recorder = Recorder()
    plan = Plan("here", (noting(notes, "one"), Step("verb", "two", "it is there"), noting(notes, "three")))
    apply(plan, LocalTransport(), layout, verb="push", progress=recorder)
    assert notes == recorder.begun == recorder.ended == ["one", "three"]
    assert recorder.skipped == ["two: it is there"]
    line = json.loads(Path(layout.audit).read_text())
    assert (line["verb"], line["steps"], line["outcome"]) == ("push", ["verb: one", "verb: three"], "ok")
    assert not Path(layout.lock).exists()


def test_a_plan_without_pending_steps_asks_the_host_nothing(layout: Here) -> None:
    untouched = FakeTransport({})
    apply(Plan("here", (Step("verb", "two", "it is there"),)), untouched, layout, verb="push", progress=Recorder())
    assert untouched.commands == []


@pytest.mark.parametrize("error", [DeployError("it broke"), KeyboardInterrupt(), RuntimeError("a bug")])
def test_however_a_plan_ends_the_lock_is_released_and_the_end_is_logged(layout: Here, error: BaseException) -> None:
    def action(progress: Progress) -> None:
        assert look(LocalTransport(), layout) is not None
        raise error

    Path(layout.root).mkdir()
    plan = Plan("here", (noting([], "one"), Step("verb", "bad", "why not", action), noting([], "never")))
    with pytest.raises(type(error)):
        apply(plan, LocalTransport(), layout, verb="push", progress=Recorder())
    assert not Path(layout.lock).exists()
    line = json.loads(Path(layout.audit).read_text())
    assert line["steps"] == ["verb: one"]
    assert line["outcome"].startswith(type(error).__name__)


def test_the_second_comer_is_told_who_when_and_what(layout: Here) -> None:
    local = LocalTransport("box")
    with held(local, layout, "up"):
        owner = look(local, layout)
        assert owner is not None
        with pytest.raises(LockedError) as caught, held(local, layout, "push"):
            raise AssertionError("two at a time")
        assert caught.value.exit_code == Exit.LOCKED
        assert f"{owner.who}, up, since {owner.since}" in str(caught.value)
        assert "ddtree-deploy lock box --break" in str(caught.value)
        assert look(local, layout) == owner, "the refused one did not take it away"
    assert look(local, layout) is None


def test_a_broken_lock_taken_by_another_is_not_released_by_the_first(layout: Here) -> None:
    local = LocalTransport()
    with held(local, layout, "up"):
        break_it(local, layout)
        second = held(local, layout, "push")
        second.__enter__()
    owner = look(local, layout)
    assert owner is not None
    assert owner.verb == "push"
    second.__exit__(None, None, None)
    assert look(local, layout) is None


def test_a_lock_without_a_readable_owner_is_still_a_lock(layout: Here) -> None:
    Path(layout.lock).mkdir(parents=True)
    with pytest.raises(LockedError, match="its owner left no name"), held(LocalTransport(), layout, "up"):
        pass
    assert Owner.parse("{") is None


def test_the_exact_commands_of_a_lock() -> None:
    layout = Layout(root="/opt/ddtree", service="ddtree-vllm", user="ddtree")
    fake = FakeTransport({re.compile("^mkdir -p /run/lock"): "", re.compile("^grep -qsF"): ""}, uid=1000)
    with held(fake, layout, "up"):
        pass
    folder = "/run/lock/ddtree-vllm.deploy"
    assert fake.commands[0] == (
        f"sudo mkdir -p /run/lock && if mkdir {folder} 2>/dev/null; then cat >{folder}/owner; "
        f"else cat {folder}/owner 2>/dev/null; exit 75; fi"
    )
    assert re.fullmatch(rf"sudo grep -qsF [0-9a-f]{{32}} {folder}/owner && rm -rf {folder} \|\| true", fake.commands[1])


def test_a_host_that_refuses_the_lock_is_an_error_of_its_own() -> None:
    layout = Layout(root="/opt/ddtree", service="ddtree-vllm", user="ddtree")
    fake = FakeTransport({re.compile("^mkdir"): Result("", 1, "", "Read-only file system")})
    with pytest.raises(DeployError, match="Read-only"), held(fake, layout, "up"):
        pass


def test_plans_of_two_hosts_do_not_join() -> None:
    with pytest.raises(ValueError, match="two hosts"):
        Plan("a", ()) + Plan("b", ())
