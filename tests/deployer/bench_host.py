"""A stand-in for a host that is benched: files in memory, two units, and an engine whose numbers are made up here."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fakes import FakeTransport
from material import recorded

from deployer.bench.arms import name_of
from deployer.bench.model import ArmLine, BenchFile, Cell, Conditions, Machine, Measurement, Model, Percentiles, Subject
from deployer.inventory.load import load
from deployer.inventory.model import Inventory
from deployer.serve import metrics
from deployer.serve.decoding import Decoding
from deployer.serve.options import TABLE, from_yaml
from deployer.transport.base import Result

SERVICE, ARM = "ddtree-vllm", "ddtree-vllm-bench"
MANIFEST = {
    "vllm": "0.32.0",
    "torch": "2.13.0+cpu",
    "python": "3.11",
    "wheels": {"ddtree_ext-0.1.0-py3-none-any.whl": ""},
}
WAY_BACK = "/opt/ddtree/state/way-back.sh"
IDLE = recorded("gpu_a6000_pair_idle.txt")
HELD = recorded("gpu_a6000_pair_held_by_unit.txt")


def inventory(**changes: dict[str, Any]) -> Inventory:
    """Staging's, with other values in some sections."""
    data = load("staging").model_dump()
    for section, values in {"tree": {"enabled": True, "budget": 15}, **changes}.items():
        data[section] = {**data[section], **values}
    return Inventory.model_validate(data)


@dataclass
class Box:
    """The stand-in's memory. `log` has what happened to the units and each client's run, in order."""

    files: dict[str, bytes] = field(default_factory=dict)
    active: dict[str, bool] = field(default_factory=lambda: {SERVICE: True, ARM: False})
    log: list[str] = field(default_factory=list)
    drafts: int = 0
    gpus: str = IDLE
    template: bool = False
    confinement: str = ""
    before_client: Callable[[str], None] = lambda unit: None
    speed: Callable[[str, int], float] = lambda arm, requests: 100.0  # output tokens a second

    @property
    def arm(self) -> str:
        """The name of the arm that is up, read from the configuration that it was started with."""
        options = from_yaml(self.files[f"/run/{ARM}-work/arm.yaml"].decode())
        speculative = options.get("speculative-config")
        if speculative is None:
            return "ar"
        tokens, table = speculative["num_speculative_tokens"], speculative.get(TABLE, ())
        if speculative["method"] == "mtp":
            return f"mtp:{tokens}"
        return name_of(Decoding("tree" if "worker-cls" in options else "chain", tokens, tuple(map(tuple, table))))


class BenchHost(FakeTransport):
    """Answers the bench's commands from a Box."""

    def __init__(self, box: Box) -> None:
        super().__init__({})
        self.box = box
        handlers: list[tuple[str, Callable[[str], Any]]] = [
            (r"systemctl show .* -p LoadState", self._state),
            (r"^u=\S+; g=.*systemctl stop", self._stop),
            (r"reset-failed .*; systemctl start", self._start),
            (r"^systemctl stop .*; rm -rf", self._clear),
            (r"^if test -e .*way-back", self._go_back),
            (r"^test -e \S*way-back\.sh$", lambda _: "" if WAY_BACK in box.files else Result("", 1, "", "")),
            (r"^systemctl is-active", self.watched),
            (r"^(systemctl (daemon-reload|stop 'ddtree-vllm-watch-)|exec systemd-run|mv -T)", lambda _: ""),
            (r"^command -v systemd-run", lambda _: self.box.confinement),
            (r"bench serve", self._client),
            (r"^cat /run/.*cell\.json", lambda _: self.box.files["cell.json"].decode()),
            (r"^rm -f .*gpu\.csv", lambda _: ""),
            (r"gpu\.csv", lambda _: ""),
            (r"^command -v|proc/driver/nvidia", lambda _: self.box.gpus),
            (r"journalctl", lambda _: "a line of the journal\n"),
            (r"chat_template", lambda _: "" if box.template else Result("", 1, "", "")),
            (r"xargs -r cat", lambda _: ""),
            (r"readlink -e", lambda _: "/opt/ddtree/models/pushed"),
            (r"release\.json", lambda _: json.dumps(MANIFEST)),
            (r"\.sha256sums", lambda _: f"{'0' * 64}  -\n"),
            (r"/config\.json 2>/dev/null; true", lambda _: '{"mtp_num_hidden_layers": 1}'),
            (r"^test -f .*/config\.json", lambda _: ""),
            (r"cpuinfo", lambda _: "a processor\n"),
            (r"os-release", lambda _: recorded("host_ct129.txt")),
            (r"^id -u|^mkdir|^umask|^rm -rf|^ss |sport", lambda _: ""),
        ]
        self.answers = {re.compile(pattern, re.S): handler for pattern, handler in handlers}

    def run(self, command: str, **options: Any) -> Any:
        if command.endswith(" -I -"):
            self.answers[command] = self._http(options["stdin"].decode())
        if "xargs -r cat" in command:
            folder = shlex.split(command)[1]
            names = options["stdin"].decode().split()
            self.answers[command] = "".join(self.box.files.get(f"{folder}/{name}", b"").decode() for name in names)
        return super().run(command, **options)

    def write(self, data: bytes, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        super().write(data, remote, mode=mode, sudo=sudo)
        self.box.files[remote] = data

    @property
    def cells(self) -> list[str]:
        """The files that the bench keeps."""
        return sorted(path for path in self.box.files if "/state/bench/" in path)

    def _unit(self, command: str) -> str:
        return ARM if ARM in command else SERVICE

    def _state(self, command: str) -> str:
        unit = self._unit(command)
        active = "active\nSubState=running" if self.box.active[unit] else "inactive\nSubState=dead"
        there = unit == SERVICE or f"/run/systemd/system/{ARM}.service" in self.box.files
        loaded = "loaded" if there else "not-found"
        return f"LoadState={loaded}\nActiveState={active}\nMainPID=7\nNRestarts=0\ncurrent=/opt/ddtree/releases/r1\n"

    def _stop(self, command: str) -> str:
        unit = self._unit(command)
        if self.box.active[unit]:
            self.box.log.append(f"stop {self.box.arm if unit == ARM else SERVICE}")
        self.box.active[unit], self.box.gpus = False, IDLE if self.box.gpus else ""
        return ""

    def _clear(self, command: str) -> str:
        """The arm's engine, client and files are gone."""
        if self.box.active[ARM]:
            self.box.log.append(f"stop {self.box.arm}")
        self.box.active[ARM] = False
        self.box.files = {path: data for path, data in self.box.files.items() if not path.startswith("/run/")}
        return ""

    def go_back(self) -> None:
        """What the host does by itself when it no longer hears from who stopped the service."""
        self._go_back("")

    def _go_back(self, command: str) -> str:
        """What the script says that the host keeps for this: once."""
        if WAY_BACK not in self.box.files:
            return ""
        script = self.box.files.pop(WAY_BACK).decode()
        assert "systemctl stop ddtree-vllm-bench-client.service" in script
        assert f"systemctl start --no-block {SERVICE}.service" in script
        self._clear(script)
        return self._start(f"systemctl start {SERVICE}.service")

    def _start(self, command: str) -> str:
        unit = self._unit(command)
        self.box.active[unit] = True
        self.box.log.append(f"start {self.box.arm if unit == ARM else SERVICE}")
        return ""

    def _client(self, command: str) -> Any:
        words = dict(pairwise(shlex.split(command)))
        what = f"{self.box.arm} c{words['--max-concurrency']} T{words.get('--temperature', 'own')}"
        self.box.before_client(what)
        self.box.log.append(what)
        self.box.drafts += 10
        requests = int(words["--num-prompts"])
        percentiles = {f"p{rank}_{name}_ms": 5.0 for rank in (10, 50, 90, 99) for name in ("ttft", "tpot", "e2el")}
        totals = {"completed": requests, "failed": 0, "duration": 2.0}
        totals["output_throughput"] = self.box.speed(self.box.arm, int(words["--max-concurrency"]))
        totals |= {"total_input_tokens": 50, "total_output_tokens": 200}
        texts = {"generated_texts": [f"answer {number}" for number in range(requests)]}
        self.box.files["cell.json"] = json.dumps({**totals, **percentiles, **texts}).encode()
        return ""

    def _http(self, script: str) -> str:
        asked = json.loads(json.loads(script.split("json.loads(", 1)[1].split(")\n", 1)[0]))
        if asked["url"].endswith("/v1/completions"):
            self.box.drafts += 10
            text = json.dumps({"choices": [{"text": "the young captain keeps the lantern"}]})
        elif asked["url"].endswith("/v1/models"):
            text = json.dumps({"data": [{"id": "tiny"}]})
        else:
            drafts = self.box.drafts
            text = f"{metrics.DRAFTS} {drafts}\n{metrics.ACCEPTED} {3 * drafts}\n{metrics.NODES} {15 * drafts}\n"
            text += f"{metrics.TREES} {drafts}\n{metrics.OFF_SPINE} {drafts // 2}\n"
        return json.dumps({"status": 200, "text": text})


# Results without a host.


def conditions(arm: str = "tree:15", **changes: Any) -> Conditions:
    usual = {
        "arm": arm,
        "prompts": "code",
        "prompts_digest": "d",
        "chat_template": True,
        "temperature": "0",
        "concurrency": 1,
        "requests": 4,
        "output_tokens": 64,
        "warm_ups": 2,
        "seed": 1,
        "round": 1,
    }
    return Conditions(**{**usual, **changes})


def percentiles(middle: float) -> Percentiles:
    return Percentiles(p10=middle * 0.8, p50=middle, p90=middle * 1.5, p99=middle * 2)


def measurement(tpot: float = 10.0, **changes: Any) -> Measurement:
    usual = {
        "when": "2026-01-01T00:00:00+00:00",
        "seconds": 20.0,
        "load_seconds": 60.0,
        "requests": 4,
        "input_tokens": 100,
        "output_tokens": 256,
        "output_tokens_per_second": 1000 / tpot,
        "ttft": percentiles(50.0),
        "tpot": percentiles(tpot),
        "e2e": percentiles(50 + 64 * tpot),
        "drafts": 30,
        "acceptance_length": 5.0,
        "accepted_by_depth": (0.9, 0.8),
        "trees": 0,
        "nodes": 0,
        "accepted_off_spine": 0,
        "gpus": (),
        "outputs": ("a", "b", "c", "d"),
    }
    return Measurement(**{**usual, **changes})


def cell(arm: str, tpot: float, *, seen: dict[str, Any] | None = None, **under: Any) -> Cell:
    """One cell; ar drafts nothing, a tree has trees."""
    kind = arm.partition(":")[0]
    own: dict[str, Any] = {
        "ar": {"drafts": 0, "acceptance_length": 1.0, "accepted_by_depth": ()},
        "tree": {"trees": 30, "nodes": 450, "accepted_off_spine": 12, "acceptance_length": 5.5},
    }.get(kind, {})
    return Cell(conditions=conditions(arm, **under), measured=measurement(tpot, **{**own, **(seen or {})}))


LINES = (
    ArmLine(name="ar", title="autoregressive", tokens=0),
    ArmLine(name="chain:7", title="DFlash chain, K=7", tokens=7),
    ArmLine(name="tree:15", title="tree, budget 15", tokens=15),
)


def results(*cells: Cell, build: str = "cuda", arms: tuple[ArmLine, ...] = LINES) -> BenchFile:
    subject = Subject(
        host="box",
        build=build,
        release="cuda-0123456789ab",
        versions={"vllm": "0.32.0", "torch": "2.11.0"},
        target=Model(path="/models/target", fingerprint="1" * 64),
        drafter=Model(path="/models/drafter", fingerprint="2" * 64),
        machine=Machine(
            os="Debian 12",
            kernel="6.8",
            processor="a processor",
            cpus=16,
            memory_gib=128.0,
            gpus=("NVIDIA RTX A6000, 49140 MiB",) * 2,
            driver="580.65",
        ),
    )
    return BenchFile(subject=subject, arms=arms, cells=cells)
