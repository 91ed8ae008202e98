"""A stand-in for a host that serves: files, links and one unit in memory; and what tests of the serve room ask of it."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes import FakeTransport
from material import recorded

from deployer.inventory.load import load
from deployer.inventory.model import Inventory
from deployer.plan.apply import Silent, run
from deployer.plan.step import Plan
from deployer.serve import metrics
from deployer.serve.records import Record, Records
from deployer.serve.service import Service
from deployer.serve.tuned import Tuned, text
from deployer.transport.base import Result
from deployer.transport.shell import CommandError

ROOT = "/opt/ddtree"
DEPLOYMENTS = f"{ROOT}/state/deployments"


def _unless_off(asked: dict[str, Any]) -> int:
    return 0 if asked.get("vllm_xargs", {}).get("ddtree") == "off" else 10


@dataclass
class Engine:
    """What the engine would do with the configuration that is in place when it is started. `drafted` says how many trees
    a request makes, `tokens_of` the tokens of its answer; `others` run and have that many tokens between two scrapes.
    """

    sound: Callable[[dict[str, Any]], bool] = lambda options: True
    drafted: Callable[[dict[str, Any]], int] = _unless_off
    tokens_of: Callable[[dict[str, Any]], list[str]] = lambda asked: ["qsuwy:", " an", " answer"]
    others: tuple[int, int] = (2, 90)
    drafts: int = 0
    tokens: int = 0


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
    audit: str = ""
    full: bool = False
    gpus: str = "[module]\n[nodes]\n"
    fetching: str = ""
    unit: str = "unit_without_gpus.txt"  # the recording of what its systemd says to a transient unit

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
            (r"^cat .*/config ", self._cat),
            (r"sha256sum", lambda _: self._digests()),
            (r"^umask 077; mkdir -p", self._link),
            (r"^ln -sfn", self._link),
            (r"^umask 022; install -D", self._install),
            (r"^\{ test ! -L ", self._renamed),
            (r"^if test -e \S*way-back\.sh", lambda _: self._went_back()),
            (r"^rm -f ", self._removed),
            (r"^(test -e|mv -T) \S*way-back\.sh", self._way),
            (r"^systemctl is-active -q ddtree-vllm-watch", self.watched),
            (r"^systemctl (stop '?ddtree-vllm-watch|daemon-reload)|^exec systemd-run .*-watch-", lambda _: ""),
            (r"\nsystemctl stop", lambda _: self._set(False)),
            (r"reset-failed .*; systemctl start|^systemctl start --no-block", lambda _: self._set(True)),
            (r"^systemctl reset-failed", lambda _: ""),
            (r"^systemctl disable .*rm -f", lambda _: self._take_away()),
            (r"^systemctl (enable|disable|start)", lambda _: ""),
            (r"^command -v systemd-run", lambda _: recorded(machine.unit)),
            (r"audit\.log.* tail ", lambda _: machine.audit),
            (r"^echo .*date \+%s", lambda _: "93784\n"),
            (r"^systemctl list-units .*-fetch-", lambda _: machine.fetching),
            (r"nvidia-smi", lambda _: machine.gpus),
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
        if self.machine.full:
            raise CommandError(self.name, Result(f"write {remote}", 1, "", "No space left on device"))
        super().write(data, remote, mode=mode, sudo=sudo)
        self.machine.files[remote] = data

    def _failed(self) -> Result:
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
        return "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in self.machine.files.items())

    def _link(self, command: str) -> str:
        for target, link in re.findall(r"ln -sfn (\S+) (\S+)", command):
            self.machine.links[link] = target
        for staged, link in re.findall(r"mv -Tf (\S+\.new) (\S+)", command):
            self.machine.links[link] = self.machine.links.pop(staged)
        return ""

    def _install(self, command: str) -> str:
        for source, target in re.findall(r"install -D -m \d+ (\S+) (\S+)", command):
            self.machine.files[target] = self.machine.files[self._resolve(source)]
        return self._link(command)

    def _renamed(self, command: str) -> str:
        for source, target in re.findall(r"mv -fT (\S+) ([^;]+);", command):
            if source in self.machine.files:
                self.machine.files[target] = self.machine.files.pop(source)
            if source in self.machine.links:
                self.machine.links[target] = self.machine.links.pop(source)
        return ""

    def _removed(self, command: str) -> str:
        for path in shlex.split(command)[2:]:
            self.machine.files.pop(path, None)
            self.machine.links.pop(path, None)
        return ""

    def _way(self, command: str) -> Any:
        """Whether the way back stands; the deployer closes it by renaming the script."""
        script = f"{ROOT}/state/way-back.sh"
        if script not in self.machine.files:
            return Result("", 9, "", "no such file")
        if command.startswith("mv"):
            del self.machine.files[script]
        return self._link(command)

    def _went_back(self) -> str:
        """systemd runs the script, if it is there: here its parts, each as a command of its own."""
        script = self.machine.files.pop(f"{ROOT}/state/way-back.sh", b"").decode()
        if not script:
            return ""
        stop = re.search(r"^\((u=.*?)\) \|\| test", script, re.M | re.S)
        assert stop is not None
        self.run(stop[1], sudo=True)
        for line in script[stop.end() :].splitlines():
            if line.startswith(("systemctl", "{ test", "rm -f")):
                self.run(line, sudo=True)
        return ""

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
            body = asked["body"]
            engine.drafts += engine.drafted(body) if "speculative-config" in self.machine.options() else 0
            tokens = engine.tokens_of(body)
            chances = {"tokens": tokens, "top_logprobs": [{token: -0.5} for token in tokens]}
            choice = {"text": "".join(tokens), "logprobs": chances if body.get("logprobs") else None}
            text = json.dumps({"choices": [choice]})
        elif asked["url"].endswith("/v1/models"):
            text = json.dumps({"data": [{"id": self.machine.options()["served-model-name"][0]}]})
        else:
            trees = f"{metrics.TREES} {engine.drafts}\n{metrics.NODES} {engine.drafts}\n"
            running, said = engine.others
            engine.tokens += said
            text = f"vllm:generation_tokens_total {engine.tokens}\nvllm:num_requests_running {running}\n"
            text += f"{metrics.DRAFTS} {engine.drafts}\n{metrics.ACCEPTED} {4 * engine.drafts}\n{trees}"
        return json.dumps({"status": 200, "text": text})


def inventory(**serve: Any) -> Inventory:
    data = load("staging").model_dump()
    data["serve"] = {**data["serve"], "prompt": "acegikmo", "expect": "qsuwy", **serve}
    return Inventory.model_validate(data)


def without_drafts(file: Path) -> Inventory:
    """One that was tuned, to plain decoding."""
    values = Tuned(kind="autoregressive", tokens=0, host="staging", when="today", release="r1", drafter="d")
    file.write_text(text(values, ()))
    usual = inventory()
    return usual.model_copy(update={"tree": usual.tree.model_copy(update={"tuned": file})})


def applied(made: Plan) -> Plan:
    run(made, Silent())
    return made


def active(host: Host) -> Record:
    found = Records(host, Service.of(inventory(), host).layout).active()
    assert found is not None
    return found


def broken(options: dict[str, Any]) -> bool:
    return options.get("max-num-seqs") != 3
