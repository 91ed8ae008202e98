"""Deploying over what serves, and the way back. The host is a stand-in: files, links and one unit in memory."""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from fakes import FakeTransport

from deployer.errors import DeployError, GateError, PreflightError, RollbackError, UsageError
from deployer.inventory.load import load
from deployer.inventory.model import Inventory
from deployer.plan.apply import Silent, run
from deployer.plan.step import Plan
from deployer.serve import metrics, plan, rollback, smoke, stop, uninstall
from deployer.serve.account import step as account_step
from deployer.serve.endpoint import Completion
from deployer.serve.records import Records
from deployer.serve.service import Service
from deployer.serve.smoke import first_difference

ROOT = "/opt/ddtree"
DEPLOYMENTS = f"{ROOT}/state/deployments"


@dataclass
class Engine:
    """What the engine would do with the configuration that is in place when it is started."""

    sound: Callable[[dict[str, Any]], bool] = lambda options: True
    drafts: int = 0


@dataclass
class Machine:
    """The stand-in's memory."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    active: bool = False
    starts: int = 0
    log: list[str] = field(default_factory=list)
    engine: Engine = field(default_factory=Engine)
    account: bool = True
    releases: tuple[str, ...] = ("r1", "r2")
    foreign_port: str | None = None
    models: bool = True

    def options(self) -> dict[str, Any]:
        text = self.files.get("/etc/ddtree/ddtree-vllm.yaml", b"").decode()
        return {key: json.loads(value) for key, _, value in (line.partition(": ") for line in text.splitlines())}


class Host(FakeTransport):
    """Answers the serve room's commands from a Machine."""

    def __init__(self, machine: Machine) -> None:
        super().__init__({})
        self.machine = machine
        handlers: list[tuple[str, Callable[[str], Any]]] = [
            (r"systemctl show .* -p LoadState", self._state),
            (r"^id -u", lambda _: "999" if machine.account else self._failed()),
            (r"^ss |sport", lambda _: self._port()),
            (r"cat .*record\.json", self._cat),
            (r"^cat .*/config$", self._cat),
            (r"sha256sum", lambda _: self._digests()),
            (r"^umask 077; mkdir -p", self._link),
            (r"^ln -sfn", self._link),
            (r"^umask 022; install -D", self._install),
            (r"^systemctl stop", lambda _: self._set(False)),
            (r"reset-failed .*; systemctl start", lambda _: self._set(True)),
            (r"^systemctl disable .*rm -f", lambda _: self._take_away()),
            (r"^systemctl (enable|disable|start)", lambda _: ""),
            (r"nvidia-smi", lambda _: "[module]\n[nodes]\n"),
            (r"journalctl", lambda _: "ValueError: broken on purpose\n"),
            (r"^test -f .*/config\.json", lambda _: "" if machine.models else self._failed()),
            (r"readlink -e", lambda _: f"{ROOT}/models/pushed"),
            (r"mktemp -d.*venv/bin/python", lambda _: "options-accepted\n"),
        ]
        self.answers = {re.compile(pattern, re.S): handler for pattern, handler in handlers}

    def run(self, command: str, **options: Any) -> Any:
        if command.endswith(" -I -"):
            self.answers[command] = self._http(options["stdin"].decode())
        return super().run(command, **options)

    def write(self, data: bytes, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        super().write(data, remote, mode=mode, sudo=sudo)
        self.machine.files[remote] = data

    def _failed(self) -> Any:
        from deployer.transport.base import Result

        return Result("", 1, "", "no")

    def _resolve(self, path: str) -> str:
        for link in sorted(self.machine.links, key=len, reverse=True):
            if path.startswith(link + "/"):
                return self._resolve(self.machine.links[link] + path[len(link) :])
        return path

    def _state(self, command: str) -> str:
        active = "active\nSubState=running" if self.machine.active else "inactive\nSubState=dead"
        loaded = "loaded" if "/etc/systemd/system/ddtree-vllm.service" in self.machine.files else "not-found"
        current = self.machine.links.get(f"{ROOT}/current", f"{ROOT}/releases/r1")
        releases = "".join(f"release={ROOT}/releases/{name}/\n" for name in self.machine.releases)
        return f"LoadState={loaded}\nActiveState={active}\nMainPID=7\nNRestarts=0\ncurrent={current}\n{releases}"

    def _port(self) -> str:
        return self.machine.foreign_port or ""

    def _cat(self, command: str) -> str:
        found = []
        for path in shlex.split(command.partition(" 2>")[0])[1:]:
            paths = [
                name for name in self.machine.files if re.fullmatch(path.replace("*Z-*", "[^/]*Z-[^/]*"), name)
            ] or [path]
            found += [self.machine.files.get(self._resolve(name), b"").decode() for name in sorted(paths)]
        return "".join(found)

    def _digests(self) -> str:
        import hashlib

        return "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in self.machine.files.items())

    def _link(self, command: str) -> str:
        for target, link in re.findall(r"ln -sfn (\S+) (\S+)", command):
            self.machine.links[link.removesuffix(".new")] = target
        return ""

    def _install(self, command: str) -> str:
        for source, target in re.findall(r"install -D -m \d+ (\S+) (\S+)", command):
            self.machine.files[target] = self.machine.files[self._resolve(source)]
        return self._link(command)

    def _set(self, active: bool) -> str:
        self.machine.log.append("start" if active else "stop")
        self.machine.active = active and self.machine.engine.sound(self.machine.options())
        return ""

    def _take_away(self) -> str:
        for path in [path for path in self.machine.files if path.startswith("/etc/")]:
            del self.machine.files[path]
        return ""

    def _http(self, script: str) -> str:
        asked = json.loads(json.loads(script.split("json.loads(", 1)[1].split(")\n", 1)[0]))
        engine = self.machine.engine
        if asked["url"].endswith("/v1/completions"):
            engine.drafts += 10
            text = json.dumps({"choices": [{"text": "qsuwy: an answer"}]})
        elif asked["url"].endswith("/v1/models"):
            text = json.dumps({"data": [{"id": self.machine.options()["served-model-name"][0]}]})
        else:
            trees = f"{metrics.TREES} {engine.drafts}\n{metrics.NODES} {engine.drafts}\n"
            text = f"{metrics.DRAFTS} {engine.drafts}\n{metrics.ACCEPTED} {4 * engine.drafts}\n{trees}"
        return json.dumps({"status": 200, "text": text})


def inventory(**serve: Any) -> Inventory:
    data = load("staging").model_dump()
    data["serve"] = {**data["serve"], "prompt": "acegikmo", "expect": "qsuwy", **serve}
    return Inventory.model_validate(data)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def host(machine: Machine) -> Host:
    return Host(machine)


def applied(made: Plan) -> Plan:
    run(made, Silent())
    return made


def active(host: Host) -> Any:
    return Records(host, Service.of(inventory(), host).layout).active()


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


def broken(options: dict[str, Any]) -> bool:
    return options.get("max-num-seqs") != 3


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
    assert changes[0].startswith("sudo systemctl stop mtp.service")
    assert changes[-1] == "sudo systemctl start mtp.service"
    assert not any("disable" in command for command in changes)


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
    assert "sudo systemctl stop" in " ".join(host.commands)


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


def test_stop_is_done_once(host: Host, machine: Machine) -> None:
    assert stop.plan(inventory(), host).pending == ()
    applied(plan.plan(inventory(), host))
    applied(stop.plan(inventory(), host))
    assert not machine.active
    assert stop.plan(inventory(), host).pending == ()


def test_uninstall_names_each_thing_and_touches_nothing_else(host: Host, machine: Machine) -> None:
    applied(plan.plan(inventory(), host))
    present = f"/etc/systemd/system/ddtree-vllm.service\n{ROOT}/releases\n{ROOT}/models\n/var/lib/ddtree-vllm\n"
    host.answers[re.compile(r"^for p in")] = present
    host.answers[re.compile(r"^(rm -rf|rmdir|PATH=)")] = ""
    applied(uninstall.plan(inventory(), host, models=True))
    removed = [command.removeprefix("sudo rm -rf ") for command in host.commands if command.startswith("sudo rm -rf")]
    assert removed == present.split()
    assert any("userdel ddtree" in command for command in host.commands)
    look = next(command for command in host.commands if command.startswith("sudo for p in"))
    assert f"{ROOT}/models" in look
    uninstall.plan(inventory(), host, models=False)
    assert f"{ROOT}/models" not in host.commands[-3] + host.commands[-2] + host.commands[-1]


def test_the_account_is_made_once_without_a_shell(host: Host, machine: Machine) -> None:
    layout = Service.of(inventory(), host).layout
    assert not account_step(layout, host).needed
    machine.account = False
    host.answers[re.compile("useradd")] = ""
    step = account_step(layout, host)
    assert step.action is not None
    step.action(Silent())
    assert "--shell /usr/sbin/nologin ddtree" in host.commands[-1]


def test_smoke_on_a_stopped_service_fails_at_once(host: Host) -> None:
    with pytest.raises(DeployError, match="is inactive"):
        smoke.smoke(inventory(), host, Silent())


def completion(*tokens: str, top: dict[str, float] | None = None) -> Completion:
    return Completion("".join(tokens), tokens, tuple({**{token: -0.7}, **(top or {})} for token in tokens))


def test_equal_tokens_agree_and_the_first_difference_is_judged_by_the_plain_gap() -> None:
    assert first_difference(completion("a", "b"), completion("a", "b")) is None
    near = first_difference(completion("a", "b", top={"c": -0.8}), completion("a", "c"))
    assert near is not None
    assert near.tie
    assert near.position == 1
    far = first_difference(completion("a", "b", top={"c": -1.8}), completion("a", "c"))
    assert far is not None
    assert not far.tie


def test_a_token_that_plain_decoding_did_not_consider_is_no_tie_nor_is_a_shorter_output() -> None:
    for tree in (completion("a", "z"), completion("a")):
        found = first_difference(completion("a", "b"), tree)
        assert found is not None
        assert not found.tie
