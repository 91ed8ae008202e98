"""Several hosts: at the same time but no more than asked, each with its own end, the worst of which is the call's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from calling import Caller, write_inventory
from material import REPOSITORY, inventory_for

from deployer.cli import fleet
from deployer.errors import Exit
from deployer.push import digest


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture
def hosts(tmp_path: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of two inventories of this machine, both in group `pair`."""
    folder = tmp_path / "inventory"
    folder.mkdir()
    monkeypatch.setenv("DDTREE_INVENTORY", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    for name in ("ann", "bob"):
        (tmp_path / name).mkdir()
        changes = {"name": name, "groups": ["pair"], "service": f"ddtree-test-{name}-{os.getpid()}"}
        write_inventory(inventory_for(tmp_path / name, drafter), folder / f"{name}.toml", **changes)
    return folder


def standing_in(monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Shell scripts in place of the processes of these hosts."""
    monkeypatch.setattr(fleet.Call, "words", lambda self, host, as_json: ["/bin/sh", "-c", scripts[host]])


def test_one_failing_host_hides_nothing_of_the_others(call: Caller, hosts: Path, tmp_path: Path) -> None:
    """Real processes: one pushes, the other has no drafter."""
    text = (hosts / "bob.toml").read_text()
    (hosts / "bob.toml").write_text(text.replace("drafter.safetensors", "nothing.safetensors"))
    called = call("--local", "push", "--group", "pair")
    assert called.code == Exit.PREFLIGHT
    assert (tmp_path / "ann/root/models/tiny-hybrid/config.json").is_file()
    assert "ann | + push: send the drafter" in called.stdout
    assert "bob | error: checkpoint" in called.stderr
    assert called.stdout.splitlines()[-2:] == [
        "ann   ok",
        "bob   preflight (3): the host is not fit for what was asked, or a command on it failed; what served serves on",
    ]


def test_options_of_the_verb_reach_every_host_and_json_is_one_document(
    call: Caller, hosts: Path, tmp_path: Path
) -> None:
    called = call("--local", "push", "--on", "bob,ann,bob", "--plan", "--json")
    assert (called.code, called.fleet.verb) == (0, "push")
    assert [(inner.host, inner.plan_only, inner.outcome) for inner in called.fleet.hosts] == [
        ("bob", True, "ok"),
        ("ann", True, "ok"),
    ]
    assert "ann | + push" in called.stderr
    assert not (tmp_path / "ann/root").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("logs", "-n", "5", "-f"), "logs --lines=5 --follow"),
        (("logs",), "logs"),
        (("lock", "--break", "it died", "--plan"), "lock --break=it died --plan"),
        (("--local", "uninstall", "--keep-models"), "--local uninstall --keep-models"),
        (("up", "--replace", "old.service", "--take-gpu"), "up --replace=old.service --take-gpu"),
    ],
)
def test_each_host_gets_the_command_line_that_was_given(
    call: Caller, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: str
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(fleet, "run", lambda made, hosts, parallel: asked.extend(made.words(h, False) for h in hosts))
    assert call(*words, "--on", "a,b").code == 0
    assert [" ".join(line[3:]) for line in asked] == [f"{expected} -- a", f"{expected} -- b"]


@pytest.mark.parametrize("option", ["tune --file", "tune --out", "tune --html", "bench --out", "bench --html"])
def test_several_hosts_do_not_write_one_file(call: Caller, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    asked: list[str] = []
    monkeypatch.setattr(fleet, "run", lambda made, hosts, parallel: asked.extend(hosts))
    refused = call(*option.split(), "all.toml", "--on", "a,b")
    assert (refused.code, asked) == (Exit.USAGE, [])
    assert "several hosts would write one file, all.toml" in refused.stderr
    assert "put {host} into its name" in refused.stderr
    assert call(*option.split(), "{host}.toml", "--on", "a,b").code == Exit.OK
    assert call(*option.split(), "all.toml", "--on", "c").code == Exit.OK, "one host has it for itself"
    assert asked == ["a", "b", "c"]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_hosts_at_a_time_than_asked_for(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: int
) -> None:
    """Each stand-in counts, while it runs, how many others do."""
    (tmp_path / "running").mkdir()
    script = f"cd {tmp_path}/running; mkdir $$; ls | wc -l >>../counts; sleep 0.3; rmdir $$"
    names = ("a", "b", "c", "d")
    standing_in(monkeypatch, **dict.fromkeys(names, script))
    assert call("status", "--on", ",".join(names), "--parallel", str(limit)).code == 0
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert len(counts) == 4
    assert max(counts) <= limit
    assert limit == 1 or max(counts) > 1


def test_the_worst_end_is_the_calls_and_a_killed_process_is_no_success(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing_in(monkeypatch, a="exit 8", b="exit 0", c="kill -9 $$")
    called = call("status", "--on", "a,b,c")
    assert called.code == Exit.UNEXPECTED
    assert [line.split()[:2] for line in called.stdout.splitlines()] == [
        ["a", "locked"],
        ["b", "ok"],
        ["c", "unexpected"],
    ]


def test_an_interrupt_reaches_each_running_host_once_and_those_that_wait_are_not_begun(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each stand-in gives back what it holds before it ends, as a deployment does with its lock."""
    begin = f"trap 'echo x >>{tmp_path}/HOST.interrupts' TERM; touch {tmp_path}/HOST.begun; "
    wait = f"while ! test -s {tmp_path}/HOST.interrupts; do sleep 0.05; done; sleep 0.2; exit 130"
    names = ("a", "b", "c")
    standing_in(monkeypatch, **{name: (begin + wait).replace("HOST", name) for name in names})

    def interrupt() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not all((tmp_path / f"{name}.begun").exists() for name in "ab"):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    called = call("push", "--on", "a,b,c", "--parallel", "2", "--json")
    thread.join()
    assert called.code == called.fleet.exit_code == Exit.INTERRUPTED
    assert [(tmp_path / f"{name}.interrupts").read_text() for name in "ab"] == ["x\n", "x\n"]
    assert not (tmp_path / "c.begun").exists()
    errors = [inner.error.what for inner in called.fleet.hosts if inner.error]
    assert errors == ["it ended without a document", "it ended without a document", "not started: interrupted"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_fleet_leaves_no_lock_anywhere(hosts: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Real processes; the disks are made slow by named pipes in place of the .part, so that both still push."""
    locks = [Path(f"/run/lock/ddtree-test-{name}-{os.getpid()}.deploy") for name in ("ann", "bob")]
    parts = [slow_disk(tmp_path / name, tmp_path / "drafter.safetensors") for name in ("ann", "bob")]
    command = [sys.executable, "-m", "deployer", "--local", "push", "--on", "ann,bob"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not all(lock.exists() for lock in locks) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(number)
    said, failed = process.communicate(timeout=60)
    for part in parts:  # whoever still waits to write there ends now
        os.close(os.open(part, os.O_RDONLY | os.O_NONBLOCK))
    assert process.returncode == Exit.INTERRUPTED, failed
    assert [line.split()[:2] for line in said.splitlines()[-2:]] == [["ann", "interrupted"], ["bob", "interrupted"]]
    assert "Traceback" not in failed
    assert not any(lock.exists() for lock in locks)


def slow_disk(folder: Path, drafter: Path) -> Path:
    part = folder / f"root/models/store/{digest.of_file(drafter)}/model.safetensors.part"
    part.parent.mkdir(parents=True)
    os.mkfifo(part)
    return part


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("push", "ann", "--on", "bob"), "one way"),
        (("push", "--on", "ann", "--group", "pair"), "one way"),
        (("push", "--on", ","), "names no host"),
        (("push", "--group", "piar"), "did you mean pair?"),
        (("tunnel", "--on", "ann,bob"), "No such option"),
    ],
)
def test_which_hosts_are_meant_is_said_one_way(call: Caller, hosts: Path, words: tuple[str, ...], said: str) -> None:
    called = call(*words)
    assert called.code == Exit.USAGE
    assert said in called.stderr


def test_a_group_is_not_guessed_while_a_file_cannot_be_read(call: Caller, hosts: Path) -> None:
    (hosts / "carl.toml").write_text("groups = [")
    called = call("push", "--group", "pair")
    assert called.code == Exit.USAGE
    assert "carl.toml" in called.stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ddtree-deploy push a", "ann"),
        ("ddtree-deploy push --group p", "pair"),
        ("ddtree-deploy push --on ann,b", "ann,bob"),
        ("ddtree-deploy inventory show b", "bob"),
    ],
)
def test_the_shell_completes_names_of_hosts_and_groups(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, offered: str
) -> None:
    from deployer.cli.app import app

    monkeypatch.setenv("_DDTREE_DEPLOY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    with pytest.raises(SystemExit):
        app(prog_name="ddtree-deploy")
    assert offered in capsys.readouterr().out.split()
