"""Plans: carried out in order under the lock, with a line in the audit log; nothing is left when nothing is done."""

from __future__ import annotations

import errno
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import pytest
from fakes import FakeTransport
from material import REPOSITORY
from recorder import Recorder

from deployer.errors import DeployError, Exit, LockedError, TransferError
from deployer.inventory.model import Notify
from deployer.plan import audit
from deployer.plan.apply import apply, last_change
from deployer.plan.audit import Entry
from deployer.plan.layout import Layout
from deployer.plan.lock import NAMELESS, Owner, break_it, held, look
from deployer.plan.notify import notify
from deployer.plan.step import Plan, Progress, Step
from deployer.transport.base import Result
from deployer.transport.local import LocalTransport
from deployer.transport.shell import Raw


class Here(Layout):
    """A layout whose lock is beneath its root: the test's own folder."""

    @property
    def lock(self) -> str:
        return f"{self.root}/run/lock"


@pytest.fixture
def layout(tmp_path: Path) -> Here:
    return Here(root=str(tmp_path / "root"), service="ddtree-vllm", user="ddtree")


@pytest.fixture
def ending_by_signals() -> Iterator[None]:
    """The console script's handlers: these signals end like Ctrl-C."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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
        assert "ddtree-deploy lock box --break REASON" in str(caught.value)
        assert look(local, layout) == owner, "the refused one did not take it away"
    assert look(local, layout) is None


def test_a_broken_lock_taken_by_another_is_not_released_by_the_first(layout: Here) -> None:
    local = LocalTransport()
    with held(local, layout, "up"):
        owner = look(local, layout)
        assert owner is not None
        break_it(local, layout, owner)
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
    assert look(LocalTransport(), layout) == NAMELESS
    break_it(LocalTransport(), layout, NAMELESS)
    assert look(LocalTransport(), layout) is None


KILLED = """
import os, signal, sys
from deployer.plan.layout import Layout
from deployer.plan.lock import held
from deployer.transport.local import LocalTransport
Layout.lock = property(lambda self: f"{self.root}/run/lock")
with held(LocalTransport(), Layout(sys.argv[1], "ddtree-vllm", "ddtree"), "up"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_lock_of_a_program_that_was_killed_here_is_taken_over(
    layout: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, layout.root], cwd=REPOSITORY, check=False)
    assert done.returncode == -signal.SIGKILL
    dead = look(LocalTransport(), layout)
    assert dead is not None
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_CACHE_HOME", str(tmp_path / "another-machine"))
        with pytest.raises(LockedError, match="a deployment is under way"), held(LocalTransport(), layout, "up"):
            raise AssertionError("another machine cannot know")
    with held(LocalTransport(), layout, "up"):
        mine = look(LocalTransport(), layout)
        assert mine is not None
        assert mine.token != dead.token
    assert look(LocalTransport(), layout) is None


def test_a_lock_that_could_not_be_given_back_is_taken_over_by_the_next_run_from_here(layout: Here) -> None:
    class Cut(LocalTransport):
        cut = False

        def _execute(self, command: str, stdin: bytes | None, timeout: float) -> Raw:
            if self.cut:
                raise TransferError("the connection broke")
            return super()._execute(command, stdin, timeout)

    def deploy(line: Cut) -> None:
        with held(line, layout, "up"):
            line.cut = True
            line.run("true")

    with pytest.raises(TransferError, match="broke"):
        deploy(Cut())
    assert look(LocalTransport(), layout) is not None
    with held(LocalTransport(), layout, "up"):
        pass
    assert look(LocalTransport(), layout) is None


def test_only_the_lock_that_was_looked_at_is_broken(layout: Here) -> None:
    local = LocalTransport("box")
    with held(local, layout, "up"):
        for other in (Owner("ann@laptop", "2026-01-01T00:00:00+00:00", "up", "0" * 32), NAMELESS):
            with pytest.raises(LockedError, match="no longer the one"):
                break_it(local, layout, other)
        assert look(local, layout) is not None


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_lock_is_taken_waits_until_it_can_be_given_back(
    layout: Here, number: signal.Signals, ending_by_signals: None
) -> None:
    """The signal arrives while the host answers: before and after, the lock is either ours or nobody's."""

    class Signalled(LocalTransport):
        def _execute(self, command: str, stdin: bytes | None, timeout: float) -> Raw:
            signal.raise_signal(number)
            return super()._execute(command, stdin, timeout)

    with pytest.raises(KeyboardInterrupt), held(Signalled(), layout, "up"):
        raise AssertionError("the block does not begin")
    assert look(LocalTransport(), layout) is None


def test_a_second_signal_does_not_cut_the_release(layout: Here, ending_by_signals: None) -> None:
    class Hasty(LocalTransport):
        def _execute(self, command: str, stdin: bytes | None, timeout: float) -> Raw:
            if "rm -rf" in command:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
            return super()._execute(command, stdin, timeout)

    with pytest.raises(KeyboardInterrupt), held(Hasty(), layout, "up"):
        raise KeyboardInterrupt
    assert look(LocalTransport(), layout) is None


def test_a_lock_is_released_when_the_line_broke_while_it_was_taken(layout: Here) -> None:
    class Broken(LocalTransport):
        def _execute(self, command: str, stdin: bytes | None, timeout: float) -> Raw:
            raw = super()._execute(command, stdin, timeout)
            if "cat >" in command:
                raise TransferError("the connection broke")
            return raw

    with pytest.raises(TransferError), held(Broken(), layout, "up"):
        raise AssertionError("the block does not begin")
    assert look(LocalTransport(), layout) is None


def test_a_plan_made_before_somebody_elses_change_is_not_carried_out(layout: Here) -> None:
    """Both plan; the first carries its plan out; the second finds the lock free and what it planned from gone."""
    local, notes = LocalTransport("box"), list[str]()
    Path(layout.root).mkdir()
    seen = last_change(local, layout)
    apply(Plan("here", (noting(notes, "first"),)), local, layout, verb="push", progress=Recorder(), seen=seen)
    second = Plan("here", (noting(notes, "second"),))
    with pytest.raises(LockedError, match=r"somebody changed the host while this was planned: .*, push, ") as caught:
        apply(second, local, layout, verb="up", progress=Recorder(), seen=seen)
    assert caught.value.exit_code == Exit.LOCKED
    assert notes == ["first"]
    assert look(local, layout) is None
    assert len(audit.read(local, layout, 9)) == 1, "nothing was done, so nothing is told"
    apply(second, local, layout, verb="up", progress=Recorder(), seen=last_change(local, layout))
    assert notes == ["first", "second"]


def test_the_audit_log_is_bounded_and_its_newest_lines_are_kept(layout: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "BOUND", 2000)
    Path(layout.root).mkdir()
    for number in range(100):
        audit.write(LocalTransport(), layout, Entry.of("push", [f"step {number}"]))
    kept = [Path(f"{layout.audit}.1"), Path(layout.audit)]
    assert all(0 < path.stat().st_size < 2000 + 300 for path in kept)
    steps = [json.loads(line)["steps"] for path in kept for line in path.read_text().splitlines()]
    assert steps == [[f"step {number}"] for number in range(100 - len(steps), 100)]
    assert len(list(Path(layout.state).iterdir())) == 2


@pytest.mark.parametrize(
    ("verb", "error", "code"),
    [
        ("push", "command", Exit.TRANSFER),
        ("install", "command", Exit.INSTALL),
        ("serve", "command", Exit.PREFLIGHT),
        ("install", "disk", Exit.INSTALL),
    ],
)
def test_what_fails_within_a_step_has_the_exit_code_of_its_verb(
    layout: Here, verb: str, error: str, code: Exit
) -> None:
    def action(progress: Progress) -> None:
        if error == "disk":
            raise OSError(errno.ENOSPC, "No space left on device", "/laptop/wheels")
        LocalTransport("box").run("echo no such thing >&2; exit 4")

    with pytest.raises(DeployError) as caught:
        apply(Plan("here", (Step(verb, "x", "y", action),)), LocalTransport(), layout, verb=verb, progress=Recorder())
    assert caught.value.exit_code == code
    assert ("No space left" if error == "disk" else "no such thing") in caught.value.what


def told(layout: Here, action: Callable[[Progress], None]) -> list[Entry]:
    """What is told of a change, and that by then nobody holds the lock any more."""
    heard: list[Entry] = []

    def ended(entry: Entry) -> None:
        assert look(LocalTransport(), layout) is None
        heard.append(entry)

    plan = Plan("here", (Step("push", "send", "missing", action),))
    with suppress(DeployError):
        apply(plan, LocalTransport(), layout, verb="push", progress=Recorder(), ended=ended)
    return heard


def failing(progress: Progress) -> None:
    raise TransferError("the line broke")


def test_who_is_told_hears_of_success_and_failure_once_after_the_lock_is_released(layout: Here) -> None:
    Path(layout.root).mkdir()
    [good] = told(layout, lambda progress: None)
    assert (good.verb, good.outcome, good.exit_code, good.steps) == ("push", "ok", 0, ("push: send",))
    [bad] = told(layout, failing)
    assert (bad.outcome, bad.exit_code, bad.steps) == ("TransferError: the line broke", Exit.TRANSFER, ())
    written = [json.loads(line) for line in Path(layout.audit).read_text().splitlines()]
    assert written == [{**asdict(entry), "steps": list(entry.steps)} for entry in (good, bad)]


def test_nobody_is_told_when_somebody_else_holds_the_lock(layout: Here) -> None:
    with held(LocalTransport(), layout, "up"):
        heard: list[Entry] = []
        with pytest.raises(LockedError):
            apply(
                Plan("here", (noting([], "one"),)),
                LocalTransport(),
                layout,
                verb="push",
                progress=Recorder(),
                ended=heard.append,
            )
    assert heard == []


def test_the_command_hook_reads_the_event_from_its_stdin(tmp_path: Path) -> None:
    hook = Notify(command=("/bin/sh", "-c", f"cat >{tmp_path}/event"))
    notify(hook, "box", Entry.of("up", ["push: send"]), pytest.fail)
    event = json.loads((tmp_path / "event").read_text())
    assert (event["format"], event["host"], event["verb"]) == ("ddtree-deploy-event/1", "box", "up")
    assert (event["outcome"], event["exit_code"], event["steps"]) == ("ok", 0, ["push: send"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("/bin/sh", "-c", "echo no network >&2; exit 7"), "failed with 7: /bin/sh: no network"),
        (("/bin/sleep", "20"), "did not end within 0.2 s"),
        (("/no/such/program",), "cannot be sent: /no/such/program"),
        (("/bin/true",), None),  # it ends without reading
        ((), None),
    ],
)
def test_a_hook_that_fails_is_said_and_fails_nothing(command: tuple[str, ...], said: str | None) -> None:
    heard: list[str] = []
    notify(
        Notify(command=command, timeout=0.2 if "sleep" in str(command) else 10), "box", Entry.of("up", []), heard.append
    )
    assert len(heard) == (said is not None)
    assert said is None or said in heard[0]


def test_plans_of_two_hosts_do_not_join() -> None:
    with pytest.raises(ValueError, match="two hosts"):
        Plan("a", ()) + Plan("b", ())
