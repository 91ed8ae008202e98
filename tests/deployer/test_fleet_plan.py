"""`router up` on a host that is a stand-in: files, links, one unit and the router behind it in memory."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from fakes import FakeTransport
from serving import applied

from deployer.errors import GateError, InstallError, PreflightError, RollbackError
from deployer.fleet import plan as planned
from deployer.fleet import status
from deployer.fleet.inventory import Router
from deployer.inventory.load import load
from deployer.inventory.model import Inventory
from deployer.transport.base import Result

UNIT = "/etc/systemd/system/ddtree-router.service"
DROPIN = f"{UNIT}.d/10-network.conf"
CURRENT = "/opt/ddtree-router/current"
URLS = ("http://10.0.0.1:8000", "http://10.0.0.2:8000")


@dataclass
class Machine:
    """The stand-in's memory. `sound` says whether a router with such a unit sends to its boxes."""

    files: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    current: str = ""
    releases: list[str] = field(default_factory=list)
    active: bool = False
    sound: Callable[[str], bool] = lambda unit: True
    starts: bool = True
    answering: tuple[str, ...] = URLS
    enforced: bool = True
    loads: bool = True
    parsed: bool = True
    foreign_port: str = ""
    log: list[str] = field(default_factory=list)


class Host(FakeTransport):
    """Answers the fleet room's commands from a Machine."""

    def __init__(self, machine: Machine) -> None:
        super().__init__({}, name="edge")
        self.machine = machine
        handlers: list[tuple[str, Callable[[str], Any]]] = [
            (r"sys\.version_info", lambda _: "3.11\n"),
            (r"^cd .*ls -1t", lambda _: "\n".join(machine.releases)),
            (r"^readlink", lambda _: machine.current),
            (r"^id -u", lambda _: "998"),
            (r"systemctl show .* -p LoadState", self._state),
            (r"sha256sum", self._digests),
            (r"^ss |sport", lambda _: machine.foreign_port),
            (r"systemd-run", lambda _: "closed" if machine.enforced else "open"),
            (r"^mkdir -p .*INCOMPLETE", lambda _: ""),
            (r"-m (venv|pip|compileall)", lambda _: ""),
            (r"parse_router_args", lambda _: "" if machine.parsed else self._failed()),
            (r"vllm-router --help", lambda _: "--worker-urls" if machine.loads else self._failed()),
            (r"^rm -f .*INCOMPLETE", self._counts),
            (r"^umask 077; rm -rf", self._keep),
            (r"^umask 022; mkdir -p", lambda _: ""),
            (r"^ln -sfn", self._point),
            (r"^test -e .*/before/0", lambda _: "" if UNIT in machine.kept else self._failed()),
            (r"^cp -p .*/before/0", self._put_back),
            (r"^systemctl disable -q", self._take_away),
            (r"^u=.*systemctl stop", lambda _: self._set(False)),
            (r"systemctl start", lambda _: self._set(True)),
            (r"journalctl", lambda _: "Error: broken on purpose\n"),
        ]
        self.answers = {re.compile(pattern, re.S): handler for pattern, handler in handlers}

    def run(self, command: str, **options: Any) -> Any:
        if " -I - " in command:
            lines = (f"{url} {'ok' if url in self.machine.answering else 'timed out'}" for url in URLS)
            self.answers[command] = "\n".join(lines)
        elif command.endswith(" -I -"):
            self.answers[command] = self._http()
        return super().run(command, **options)

    def write(self, data: bytes, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        super().write(data, remote, mode=mode, sudo=sudo)
        self.machine.files[remote] = data.decode()

    def _failed(self) -> Result:
        return Result("", 1, "", "libssl.so.9: cannot open")

    def _state(self, _: str) -> str:
        machine = self.machine
        active = "active\nSubState=running" if machine.active else "inactive\nSubState=dead"
        loaded = "loaded" if UNIT in machine.files else "not-found"
        return f"LoadState={loaded}\nActiveState={active}\nMainPID=7\nNRestarts=0\ncurrent={machine.current}\n"

    def _digests(self, _: str) -> str:
        made = self.machine.files.items()
        return "".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {path}\n" for path, text in made)

    def _counts(self, command: str) -> str:
        self.machine.releases.insert(0, command.split("/INCOMPLETE", maxsplit=1)[0].rpartition("/")[2])
        return ""

    def _keep(self, _: str) -> str:
        machine = self.machine
        machine.kept = {path: machine.files[path] for path in (UNIT, DROPIN) if path in machine.files}
        machine.kept |= {CURRENT: machine.current} if machine.current else {}
        return ""

    def _point(self, command: str) -> str:
        self.machine.current = command.split()[2]
        return ""

    def _put_back(self, _: str) -> str:
        self.machine.files |= {path: text for path, text in self.machine.kept.items() if path != CURRENT}
        self.machine.current = self.machine.kept[CURRENT]
        return ""

    def _take_away(self, _: str) -> str:
        self.machine.files = {path: text for path, text in self.machine.files.items() if path not in (UNIT, DROPIN)}
        self.machine.current = ""
        return ""

    def _set(self, active: bool) -> Any:
        self.machine.log.append("start" if active else "stop")
        if active and not self.machine.starts:
            return self._failed()
        self.machine.active = active and self.machine.sound(self.machine.files[UNIT])
        return ""

    def _http(self) -> str:
        if not self.machine.active:
            return json.dumps({"status": 0, "text": "Connection refused"})
        workers = [{"url": url, "is_healthy": url in self.machine.answering} for url in URLS]
        return json.dumps({"status": 200, "text": json.dumps({"workers": workers})})


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def host(machine: Machine) -> Host:
    return Host(machine)


@pytest.fixture(autouse=True)
def _two_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    def box(number: int) -> Inventory:
        data = load("staging").model_dump()
        data["serve"] |= {"address": f"10.0.0.{number}", "allow": ["10.0.0.9"]}
        return Inventory.model_validate(data | {"name": f"box{number}", "groups": ["pair"]})

    made = (box(1), box(2))
    for module in (planned, status):
        monkeypatch.setattr(module, "boxes", lambda router: made)


def router(**serve: Any) -> Router:
    return Router.model_validate({"name": "edge", "group": "pair", "ssh": {"host": "kpro5"}, "serve": serve})


def test_a_first_router_is_installed_proved_and_started_and_then_there_is_nothing_to_do(
    host: Host, machine: Machine
) -> None:
    made = planned.plan(router(), host)
    assert [step.title for step in made.pending] == ["router", "start"]
    assert machine.log == [], "planning changes nothing"
    applied(made)
    assert machine.active
    assert f"--worker-urls {' '.join(URLS)}\n" in machine.files[UNIT]
    assert machine.current.startswith("/opt/ddtree-router/releases/router-")
    again = planned.plan(router(), host)
    assert again.pending == ()
    assert again.steps[-1].reason.endswith("over 2 boxes")


def test_a_box_that_is_down_is_named_and_does_not_keep_the_router_from_the_others(host: Host, machine: Machine) -> None:
    machine.answering = URLS[:1]
    made = planned.plan(router(), host)
    assert "1 of 2 boxes answer (http://10.0.0.2:8000: timed out)" in made.pending[-1].reason
    applied(made)
    assert machine.active
    rows = dict(status.status(router(), host))
    assert rows["box box1"] == "http://10.0.0.1:8000 healthy"
    assert rows["box box2"] == "http://10.0.0.2:8000 unhealthy: gets no requests"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answering": ()}, "no box of group pair answers"),
        ({"foreign_port": 'LISTEN 0 1 0.0.0.0:30000 0.0.0.0:* users:(("x",pid=5,fd=1))'}, "port 30000 is taken"),
        ({"enforced": False}, "does not hold"),
    ],
)
def test_what_would_keep_a_new_router_from_serving_is_found_before_the_old_one_stops(
    host: Host, machine: Machine, change: dict[str, Any], said: str
) -> None:
    applied(planned.plan(router(), host))
    machine.log.clear()
    vars(machine).update(change)
    with pytest.raises(PreflightError, match=said):
        planned.plan(router(policy="cache_aware"), host)
    assert machine.log == []
    assert machine.active


def test_options_that_the_router_refuses_are_found_before_the_old_one_stops(host: Host, machine: Machine) -> None:
    applied(planned.plan(router(), host))
    machine.log.clear()
    machine.parsed = False
    with pytest.raises(PreflightError, match="vllm-router refuses the options"):
        applied(planned.plan(router(options={"no-such-option": 1}), host))
    assert machine.log == []
    assert "no-such-option" not in machine.files[UNIT]


def test_a_router_that_does_not_send_is_replaced_by_the_one_before(host: Host, machine: Machine) -> None:
    applied(planned.plan(router(), host))
    before = dict(machine.files)
    machine.sound = lambda unit: "cache_aware" not in unit
    with pytest.raises(GateError, match="the one before was started again") as caught:
        applied(planned.plan(router(policy="cache_aware"), host))
    assert "broken on purpose" in caught.value.remedy
    assert machine.active
    assert {path: machine.files[path] for path in (UNIT, DROPIN)} == {path: before[path] for path in (UNIT, DROPIN)}


def test_a_first_router_that_does_not_send_is_stopped_and_leaves_no_unit(host: Host, machine: Machine) -> None:
    machine.sound = lambda unit: False
    with pytest.raises(GateError, match="there was none before"):
        applied(planned.plan(router(), host))
    assert UNIT not in machine.files
    assert machine.current == ""


def test_when_the_one_before_does_not_start_either_a_person_is_needed(host: Host, machine: Machine) -> None:
    applied(planned.plan(router(), host))
    machine.starts = False
    with pytest.raises(RollbackError, match="could not be restored"):
        applied(planned.plan(router(policy="cache_aware"), host))


def test_a_release_whose_library_does_not_load_never_counts(host: Host, machine: Machine) -> None:
    machine.loads = False
    with pytest.raises(InstallError, match=r"libssl\.so\.9"):
        applied(planned.plan(router(), host))
    assert machine.releases == []
    assert machine.log == []


def test_a_new_release_replaces_the_old_and_keeps_as_many_as_asked(host: Host, machine: Machine) -> None:
    applied(planned.plan(router(), host))
    machine.releases = ["router-b", "router-a"]
    machine.current = "/opt/ddtree-router/releases/router-b"
    host.answers[re.compile("^rm -rf")] = ""
    made = planned.plan(router(), host)
    assert [step.reason for step in made.pending if step.title == "prune"] == ["older than the newest 2: router-a"]
    assert "replaces router-b" in made.pending[-1].reason
