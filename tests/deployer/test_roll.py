"""`--rolling`: one host after the other, each only when the one before it has proved itself. The hosts' processes are
shell scripts, stand-ins that print the document of a plan and write down when their turn came.
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from calling import Called, Caller

from deployer.cli import fleet
from deployer.cli.document import Document, ErrorLine, StepLine, code_and_outcome
from deployer.errors import Exit

PENDING = StepLine(verb="serve", title="start", reason="the inventory asks for another configuration", state="pending")
DONE = StepLine(verb="serve", title="service", reason="running since yesterday", state="unneeded")
Roll = Callable[..., Called]


def planned(host: str, *steps: StepLine) -> Document:
    return Document(**code_and_outcome(Exit.OK), verb="up", host=host, plan_only=True, steps=list(steps))


def unfit(host: str) -> Document:
    error = ErrorLine(what="the disk is full", where=host, remedy="make room")
    return Document(**code_and_outcome(Exit.PREFLIGHT), verb="up", host=host, plan_only=True, error=error)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture
def turns(tmp_path: Path) -> Callable[[], list[str]]:
    """The hosts that were changed, in their order."""
    file = tmp_path / "turns"
    return lambda: file.read_text().split() if file.exists() else []


@pytest.fixture
def rolled(call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Roll:
    """Rolls over stand-ins: `plans` by host, and in `ends` what the process of its turn does (a script; "exit 0")."""

    def roll(*words: str, plans: dict[str, Document], ends: dict[str, str] | None = None) -> Called:
        def stand_in(made: fleet.Call, host: str, as_json: bool) -> list[str]:
            assert "--rolling" in made.options
            if "--plan" in made.options:
                document = plans[host]
                script = f"echo looked >&2; echo {shlex.quote(document.model_dump_json())}; exit {document.exit_code}"
            else:
                says = "" if as_json else "echo deploying; "
                script = f"echo {host} >>{tmp_path}/turns; {says}{(ends or {}).get(host, 'exit 0')}"
            return ["/bin/sh", "-c", script]

        monkeypatch.setattr(fleet.Call, "words", stand_in)
        return call("up", "--on", ",".join(plans), "--rolling", *words)

    return roll


def summary(called: Called) -> list[str]:
    """The roll as people read it last: "host state"."""
    hosts = [line for line in called.stdout.splitlines() if "   " in line and " | " not in line]
    return [" ".join(line.replace(":", " ").split()[:2]) for line in hosts[-3:]]


def everybody(*names: str) -> dict[str, Document]:
    return {name: planned(name, PENDING) for name in names}


def test_each_host_has_its_turn_in_the_order_that_was_given(rolled: Roll, turns: Callable[[], list[str]]) -> None:
    called = rolled(plans=everybody("bob", "ann", "carl"))
    assert called.code == Exit.OK
    assert turns() == ["bob", "ann", "carl"]
    assert summary(called) == ["bob new", "ann new", "carl new"]
    assert "bob  | deploying" in called.stdout
    assert "looked" not in called.stderr, "plans are not shown again when they are carried out"


def test_a_gate_that_fails_ends_the_roll_before_the_next_host(rolled: Roll, turns: Callable[[], list[str]]) -> None:
    called = rolled(plans=everybody("ann", "bob", "carl"), ends={"bob": "exit 6"})
    assert called.code == Exit.GATE_FAILED
    assert turns() == ["ann", "bob"]
    assert summary(called) == ["ann new", "bob old", "carl untouched"]
    assert "the roll ended at bob" in called.stdout


@pytest.mark.parametrize(
    ("end", "code", "state"),
    [
        ("exit 3", Exit.PREFLIGHT, "old"),
        ("exit 5", Exit.INSTALL, "old"),
        ("exit 7", Exit.ROLLBACK_FAILED, "down"),
        ("exit 8", Exit.LOCKED, "old"),
        ("exit 1", Exit.UNEXPECTED, "unknown"),
        ("kill -9 $$", Exit.UNEXPECTED, "unknown"),
        ("exit 130", Exit.INTERRUPTED, "unknown"),
    ],
)
def test_what_a_host_runs_after_a_turn_that_failed_is_said(
    rolled: Roll, turns: Callable[[], list[str]], end: str, code: Exit, state: str
) -> None:
    called = rolled(plans=everybody("ann", "bob", "carl"), ends={"ann": end})
    assert called.code == code
    assert turns() == ["ann"]
    assert summary(called) == [f"ann {state}", "bob untouched", "carl untouched"]


def test_no_host_is_touched_when_one_of_them_would_end_the_roll(rolled: Roll, turns: Callable[[], list[str]]) -> None:
    called = rolled(plans={**everybody("ann", "bob"), "carl": unfit("carl")})
    assert called.code == Exit.PREFLIGHT
    assert turns() == []
    assert summary(called) == ["ann untouched", "bob untouched", "carl untouched"]
    assert "the disk is full" in called.stdout
    assert [line for line in called.stderr.splitlines() if "looked" in line] == ["carl | looked"]


def test_a_host_with_nothing_to_do_has_no_turn(rolled: Roll, turns: Callable[[], list[str]]) -> None:
    called = rolled(plans={"ann": planned("ann", DONE), "bob": planned("bob", DONE, PENDING)})
    assert called.code == Exit.OK
    assert turns() == ["bob"]
    assert summary(called)[-2:] == ["ann unchanged", "bob new"]


def test_the_plan_of_a_roll_shows_every_host_and_changes_none(rolled: Roll, turns: Callable[[], list[str]]) -> None:
    called = rolled("--plan", plans={**everybody("ann"), "bob": planned("bob", DONE), "carl": unfit("carl")})
    assert called.code == Exit.PREFLIGHT
    assert turns() == []
    assert summary(called) == ["ann pending", "bob unchanged", "carl untouched"]
    assert "ann  | looked" in called.stderr


def test_programs_read_how_far_the_roll_came(rolled: Roll) -> None:
    said = planned("ann", PENDING).model_copy(update={"plan_only": False}).model_dump_json()
    called = rolled(
        "--json",
        plans=everybody("ann", "bob", "carl"),
        ends={"ann": f"echo {shlex.quote(said)}", "bob": "exit 6"},
    )
    found = called.fleet
    assert (found.exit_code, found.outcome) == (Exit.GATE_FAILED, "gate-failed")
    assert [(line.host, line.state) for line in found.roll or ()] == [
        ("ann", "new"),
        ("bob", "old"),
        ("carl", "untouched"),
    ]
    assert [document.plan_only for document in found.hosts] == [False, False, True]


@pytest.mark.parametrize("moment", ["while it waits", "while it starts to"])
def test_an_interrupted_roll_ends_with_the_host_it_was_at(
    rolled: Roll, turns: Callable[[], list[str]], tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        deadline = time.monotonic() + 30
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    wait = f"trap 'exit 130' TERM; touch {tmp_path}/begun; while :; do sleep 0.05; done"
    if moment == "while it waits":
        threading.Thread(target=interrupt).start()
    else:
        submitted: list[None] = []

        class Slow(ThreadPoolExecutor):
            """The third process, the turn of ann after both plans, is at work before the pool says that it has begun."""

            def submit(self, *args: Any, **kwargs: Any) -> Any:
                begun = super().submit(*args, **kwargs)
                submitted.append(None)
                if len(submitted) == 3:
                    interrupt()
                return begun

        monkeypatch.setattr("deployer.cli.fleet.ThreadPoolExecutor", Slow)
    called = rolled(plans=everybody("ann", "bob"), ends={"ann": wait})
    assert called.code == Exit.INTERRUPTED
    assert turns() == ["ann"]
    assert summary(called)[-2:] == ["ann unknown", "bob untouched"]
