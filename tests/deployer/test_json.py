"""--json: every verb prints one document of one schema, whatever happens; people are spoken to on stderr."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench_host
import planted
import pytest
import typer
from calling import Caller, write_inventory
from material import REPOSITORY, inventory_for
from serving import Host, Machine
from serving import inventory as served_inventory

from deployer.bench import model as bench_model
from deployer.bench import plan as bench_plan
from deployer.bench.report import Results
from deployer.bench.result import summed_up
from deployer.cli import app, fleet, host
from deployer.cli.document import Document, Fleet, schema
from deployer.errors import Exit
from deployer.plan.layout import Layout
from deployer.plan.lock import held
from deployer.plan.step import Plan, Step
from deployer.transport.local import LocalTransport

CALLED = {"bench run": "bench"}  # `bench HOST` is its short form, and its name
LOOKING = {
    "bench show",
    "bench compare",
    "check",
    "doctor",
    "status",
    "router status",
    "logs",
    "smoke",
    "tunnel",
    "history",
}  # they change nothing: no --plan


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture
def box(tmp_path: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An inventory whose host is this machine."""
    monkeypatch.setattr(Layout, "lock", property(lambda self: f"{self.root}-lock"))
    return write_inventory(inventory_for(tmp_path, drafter), tmp_path / "box.toml")


@pytest.fixture
def standin(machine: Machine) -> Host:
    """The serve room's stand-in for a host, which can be locked, too."""
    box = Host(machine)
    quiet = (r"^mkdir -p /run/lock", r"^grep -qsF", r"^test -d /opt", r"^rm -rf", r"^for p in", r"^cat /opt.*bench")
    rest = (r"^rmdir", "userdel", "^test -d /run", r"^cat \S*audit\.log")
    box.answers |= {re.compile(pattern): "" for pattern in (*quiet, *rest)}
    return box


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standin: Host) -> Path:
    """An inventory whose host is the stand-in."""

    @contextmanager
    def opened(*args: object, **options: object) -> Iterator[Host]:
        yield standin

    monkeypatch.setattr(host, "opened", opened)
    secrets = {"VLLM_API_KEY": {"env": planted.VARIABLE}}
    return write_inventory(served_inventory(secrets=secrets), tmp_path / "served.toml")


def commands() -> dict[str, Any]:
    """Every verb and its options, as the command line knows them."""
    found: dict[str, Any] = {}

    def walk(command: Any, words: str) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{words} {name}".strip())
        if not hasattr(command, "commands"):
            found[words] = {option for parameter in command.params for option in parameter.opts}

    walk(typer.main.get_command(app.app), "")
    return found


def test_every_verb_has_json_and_every_one_that_changes_something_has_plan() -> None:
    verbs = commands()
    assert {"up", "inventory show", "lock"} <= verbs.keys()
    for verb, options in verbs.items():
        assert "--json" in options, verb
        looks = verb in LOOKING or verb.startswith("inventory ")
        assert ("--plan" in options) != looks, verb


@pytest.mark.parametrize("verb", commands())
def test_every_verb_answers_with_a_document_even_when_nothing_can_be_done(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    words = ["no-such-host"] * {"inventory list": 0, "bench compare": 2}.get(verb, 1)
    document = call.json(*verb.split(), *words)
    assert document.verb == CALLED.get(verb, verb)
    expected = Exit.OK if verb == "inventory list" else Exit.USAGE
    assert document.exit_code == expected
    assert (document.error is None) == (expected is Exit.OK)


def test_the_schema_is_the_one_that_is_documented_and_every_verb_and_part_has_its_line() -> None:
    assert json.loads((REPOSITORY / "docs/json.schema.json").read_text()) == schema(), (
        "the schema of --json has changed: within format 1 keys may only be added; then write docs/json.schema.json anew:\n"
        "python -c 'import json; from deployer.cli.document import schema; print(json.dumps(schema(), indent=1))'"
    )
    page = (REPOSITORY / "docs/json.md").read_text()
    for verb in commands():
        assert f"| `{verb}` |" in page, f"docs/json.md says nothing of {verb}"
    for part in (*Document.model_fields, *Fleet.model_fields):
        assert f"`{part}`" in page, f"docs/json.md says nothing of {part}"


def test_push_planned_done_and_done_again(call: Caller, box: Path, tmp_path: Path) -> None:
    planned = call.json("--local", "push", box, "--plan")
    assert (planned.verb, planned.host, planned.plan_only, planned.changed) == ("push", str(box), True, False)
    assert planned.steps is not None
    assert [step.state for step in planned.steps] == ["pending"] * 3
    assert not (tmp_path / "root").exists()
    done = call.json("--local", "push", box)
    assert (done.outcome, done.changed, done.plan_only, done.error) == ("ok", True, False, None)
    assert done.steps is not None
    assert [(step.title, step.reason) for step in done.steps] == [(step.title, step.reason) for step in planned.steps]
    assert all(step.state == "done" and step.seconds is not None for step in done.steps)
    again = call.json("--local", "push", box)
    assert again.changed is False
    assert {step.state for step in again.steps or []} == {"unneeded"}


def test_people_are_spoken_to_on_stderr(call: Caller, box: Path) -> None:
    called = call("--local", "push", box, "--json")
    assert "send the drafter" in called.stderr
    assert called.stdout.startswith("{")


def test_check_and_up_report_findings_even_when_they_end_there(call: Caller, box: Path, drafter: Path) -> None:
    drafter.write_bytes(drafter.read_bytes()[:-100])
    for words in (("check", box), ("doctor", box), ("up", box, "--plan"), ("up", box)):
        document = call.json("--local", *words)
        assert (document.outcome, document.exit_code) == ("preflight", Exit.PREFLIGHT)
        assert document.error is not None
        assert "drafter" in document.error.what
        assert [f.seen for f in document.findings or [] if f.subject == "drafter" and f.level == "fail"]
        machines = {f.machine for f in document.findings or []}
        assert machines == ({"this machine", "box here"} if words[0] == "doctor" else {""})


def test_verbs_that_need_a_release_say_in_json_what_is_missing(call: Caller, box: Path) -> None:
    for verb in ("bench", "serve", "rollback"):
        for plan in ([], ["--plan"]):
            document = call.json("--local", verb, box, *plan)
            assert document.exit_code == Exit.PREFLIGHT
            assert document.plan_only is bool(plan)
            assert document.error is not None
            assert document.error.remedy.startswith("ddtree-deploy")


def test_install_planned(call: Caller, box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deployer.install import plan

    monkeypatch.setattr(plan, "plan", lambda inventory, transport: plan.Plan(inventory.name, ()))
    document = call.json("--local", "install", box, "--plan")
    assert (document.verb, document.plan_only, document.exit_code) == ("install", True, 0)


def test_serve_status_smoke_stop_and_uninstall(call: Caller, served: Path, machine: Machine) -> None:
    planned = call.json("serve", served, "--plan")
    assert [step.state for step in planned.steps or []] == ["unneeded", "pending", "pending", "pending"]
    assert machine.files == {}
    done = call.json("serve", served)
    assert (done.exit_code, done.changed) == (0, True)
    assert any("acceptance length" in line for line in done.lines or [])
    status = call.json("status", served)
    assert status.values is not None
    assert status.values["unit"] == "ddtree-vllm.service: active (running)"
    assert call.json("logs", served).lines == ["ValueError: broken on purpose"]
    assert call.json("smoke", served).verb == "smoke"
    assert call.json("rollback", served, "--plan").exit_code == Exit.PREFLIGHT
    assert [step.state for step in call.json("stop", served, "--plan").steps or []] == ["pending"]
    assert call.json("stop", served).changed is True
    assert call.json("uninstall", served, "--plan").plan_only
    secret = [path for path, data in machine.files.items() if planted.SECRET.encode() in data]
    assert secret != []
    assert all(path.endswith(("/environment", ".env")) for path in secret)


def test_a_bench_reports_each_arms_numbers(
    call: Caller, served: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = bench_host.results(bench_host.cell("tree:15", 20.5, seen={"acceptance_length": 3.25}))
    measured = Step("bench", "tree:15", "measured: acceptance length 3.25, TPOT 20.5 ms")
    monkeypatch.setattr(bench_plan, "plan", lambda inventory, transport, **asked: Plan(inventory.name, (measured,)))
    arms = summed_up(file.arms, file.cells)
    monkeypatch.setattr(
        "deployer.bench.report.results", lambda inventory, transport, *sweep, **asked: Results(file, arms)
    )
    document = call.json("bench", served)
    assert document.bench == arms
    assert document.sweep == file
    assert document.changed is False
    assert document.verb == "bench"
    assert "3.25" in call("bench", served).stdout
    call("bench", served, "--out", tmp_path / "{host}.json")
    assert bench_model.read(tmp_path / "staging.json") == file
    unwritable = call.json("bench", served, "--out", tmp_path / "no" / "where.json")
    assert (unwritable.exit_code, unwritable.bench) == (Exit.USAGE, None), "it is refused before anything is measured"


def test_a_failed_gate_reports_how_far_it_came(call: Caller, served: Path, machine: Machine) -> None:
    machine.engine.sound = lambda options: False
    document = call.json("serve", served)
    assert (document.outcome, document.exit_code) == ("gate-failed", 6)
    assert [step.state for step in document.steps or []] == ["unneeded", "done", "done", "failed"]
    assert document.changed is True
    assert document.error is not None
    assert "nothing ran before" in document.error.what


def test_following_a_log_has_no_document(call: Caller, served: Path) -> None:
    assert call.json("logs", served, "-f").exit_code == Exit.USAGE


def test_a_lock_is_shown_and_broken_for_a_reason_that_the_audit_log_keeps(
    call: Caller, box: Path, drafter: Path, tmp_path: Path
) -> None:
    assert call.json("--local", "lock", box).locked_by is None
    assert call.json("--local", "lock", box, "--break", "for nothing").changed is False
    layout = Layout.of(inventory_for(tmp_path, drafter))
    (tmp_path / "root").mkdir()
    with held(LocalTransport(), layout, "up"):
        shown = call.json("--local", "lock", box)
        assert shown.locked_by is not None
        assert (shown.locked_by.verb, shown.exit_code) == ("up", 0)
        assert call.json("--local", "push", box).outcome == "locked"
        assert call.json("--local", "lock", box, "--break", " ").outcome == "usage"
        assert call.json("--local", "lock", box, "--break", "it died", "--plan").locked_by == shown.locked_by
        broken = call.json("--local", "lock", box, "--break", "it died")
        assert (broken.changed, broken.locked_by) == (True, None)
    [line] = [json.loads(line) for line in Path(layout.audit).read_text().splitlines()]
    assert (line["verb"], line["reason"], line["outcome"]) == ("lock", "it died", "ok")
    assert shown.locked_by.who in line["steps"][0]


def test_the_history_is_the_hosts_audit_log(call: Caller, box: Path, drafter: Path, tmp_path: Path) -> None:
    assert call.json("--local", "history", box).history == []
    call.json("--local", "push", box)
    layout = Layout.of(inventory_for(tmp_path, drafter))
    with Path(layout.audit).open("a") as log:
        log.write('{"cut when the disk was f\n')
    with held(LocalTransport(), layout, "up"):
        call.json("--local", "lock", box, "--break", "it died")
    history = call.json("--local", "history", box).history
    assert history is not None
    assert [(entry.verb, entry.outcome, entry.reason) for entry in history] == [
        ("push", "ok", ""),
        ("lock", "ok", "it died"),
    ]
    assert len(history[0].steps) == 3
    shown = call("--local", "history", box, "-n", "1").stdout
    assert "lock: ok (because: it died)" in shown
    assert "push" not in shown


def test_a_log_line_is_printed_as_it_is(call: Caller, served: Path, standin: Host) -> None:
    line = "[bold]x[/] :key: \\[/x] " + "long " * 40
    standin.answers = {re.compile("journalctl"): line + "\n"} | standin.answers
    assert call("logs", served).stdout == line + "\n"
    assert call.json("logs", served).lines == [line]


def test_a_way_back_that_is_blocked_is_code_7(call: Caller, served: Path, machine: Machine) -> None:
    """The service that was proved does not start any more, nor does the one that was to replace it."""
    assert call.json("serve", served).exit_code == 0
    machine.engine.sound = lambda options: False
    text = served.read_text().replace("max-num-seqs = 8", "max-num-seqs = 4")
    served.write_text(text)
    document = call.json("serve", served)
    assert (document.outcome, document.exit_code) == ("rollback-failed", 7)


def test_a_notification_that_fails_is_a_warning(call: Caller, tmp_path: Path, drafter: Path, box: Path) -> None:
    failing = write_inventory(inventory_for(tmp_path, drafter), box, notify={"command": ["/bin/false"]})
    document = call.json("--local", "push", failing)
    assert (document.exit_code, document.changed) == (0, True)
    assert document.warnings == ["the notification failed with 1: /bin/false: it printed nothing"]


def test_inventories(call: Caller, box: Path) -> None:
    listed = call.json("inventory", "list").values
    assert listed is not None
    assert "ct129" in listed
    shown = call.json("inventory", "show", box).inventory
    assert shown is not None
    assert shown["serve"]["secrets"] == {"VLLM_API_KEY": {"env": planted.VARIABLE}}
    assert (call.json("inventory", "validate", box).values or {})["drafter profile"] == "tiny-hybrid"
    assert call.json("inventory", "validate", "stagin").outcome == "usage"


@pytest.mark.parametrize(
    "words",
    [("push",), ("psuh", "staging"), ("push", "staging", "--paln"), ("push", "stagin"), ("--lokal", "push", "staging")],
)
def test_a_mistake_on_the_command_line_is_a_document_too(call: Caller, words: tuple[str, ...]) -> None:
    document = call.json(*words)
    assert (document.outcome, document.exit_code) == ("usage", Exit.USAGE)
    assert document.error is not None
    assert document.error.remedy


def test_a_bug_is_a_document_with_code_1_and_its_traceback_is_on_stderr(
    call: Caller, box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(host, "load", broken)
    called = call("--local", "push", box, "--json")
    assert (called.code, called.document.outcome) == (1, "unexpected")
    assert "ZeroDivisionError: on purpose" in called.stderr


def test_an_interrupt_is_a_document_with_code_130(call: Caller, box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(host, "load", interrupted)
    document = call.json("--local", "push", box)
    assert (document.outcome, document.exit_code) == ("interrupted", 130)


def test_a_tunnels_document_comes_when_it_is_open(
    call: Caller, served: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is an interrupt; the one document was printed before."""

    class Waiting:
        def wait(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("deployer.cli.look.threading", SimpleNamespace(Event=Waiting))
    monkeypatch.setattr(Host, "forward", lambda self, *address: LocalTransport().forward(*address))
    called = call("tunnel", served, "--json")
    assert called.code == 130
    document = called.document
    assert (document.verb, document.exit_code) == ("tunnel", 0)
    assert (document.values or {})["url"].startswith("http://127.0.0.1:")


def test_several_hosts_are_one_document_each_within_one(
    call: Caller, box: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host's process is a stand-in here, to be quick; test_fleet.py has real ones."""
    document = Document(verb="push", host="a", outcome="ok", exit_code=0).model_dump_json()
    (tmp_path / "a.json").write_text(document)
    answers = {"a": f"cat {tmp_path}/a.json", "b": "echo no document; exit 4"}
    monkeypatch.setattr(fleet.Call, "words", lambda self, name, as_json: ["/bin/sh", "-c", answers[name]])
    called = call("push", "--on", "a,b", "--json")
    assert called.code == called.fleet.exit_code == Exit.TRANSFER
    assert [inner.outcome for inner in called.fleet.hosts] == ["ok", "transfer"]
    assert called.fleet.hosts[1].error is not None
    assert called.fleet.hosts[1].error.what == "it ended without a document"
