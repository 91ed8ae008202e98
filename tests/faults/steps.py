"""The steps of an `up`: how each has something to do, and how it is known to be under way."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.scene import Deployment, Scene
from tests.faults.tool import Tool
from tests.lab.nsproxy import Faults

_BEGINS = 600.0  # seconds until a step is under way, those before it and a loaded machine included
_PUSHED = 12  # seconds that the drafter shall take; everything else is small


@dataclass(frozen=True)
class Step:
    """`prepare` takes from the box what the step will bring; `under_way` returns when it is in the middle of it."""

    name: str
    prepare: Callable[[Scene, Deployment], None]
    under_way: Callable[[Scene, Tool], None]


def _nothing(scene: Scene, new: Deployment) -> None:
    """The other deployment is another configuration: there is something to start and to prove in any case."""


def _without_its_drafter(scene: Scene, new: Deployment) -> None:
    digest = hashlib.sha256(new.drafter.read_bytes()).hexdigest()
    scene.inside(
        f"cd /opt/ddtree/models && rm -rf store/{digest} $(grep -l {digest} *-*/.sha256sums | xargs -r dirname)"
    )
    scene.lab.set_faults(Faults(rate_kbps=new.drafter.stat().st_size // 1024 // _PUSHED))


def _part_is_there(scene: Scene, tool: Tool) -> None:
    tool.says("> push: send the drafter", within=_BEGINS)
    _seen(scene, "ls /opt/ddtree/models/store/*/*.part >/dev/null 2>&1")


def _without_its_release(scene: Scene, new: Deployment) -> None:
    """What a cell that failed has left running may still write there."""
    scene.inside(f"until rm -rf /opt/ddtree/releases/{scene.release(new)} 2>/dev/null; do sleep 1; done")


def _packages_are_there(scene: Scene, tool: Tool) -> None:
    tool.says("installing .* pinned wheels", within=_BEGINS)
    venv = "$(dirname /opt/ddtree/releases/*/INCOMPLETE)/venv"
    _seen(scene, f"test $(ls -d {venv}/lib/python3*/site-packages/*.dist-info | wc -l) -gt 20")


def _without_a_result(scene: Scene, new: Deployment) -> None:
    scene.inside(f"rm -f /opt/ddtree/state/bench/{scene.release(new)}-chain*.json")


def _seen(scene: Scene, condition: str) -> None:
    """Waits until a shell condition holds in the box."""
    deadline = time.monotonic() + _BEGINS
    while scene.inside(f"if {condition}; then echo yes; fi 2>/dev/null").strip() != "yes":
        assert time.monotonic() < deadline, f"never seen: {condition}"


PUSH = Step("push", _without_its_drafter, _part_is_there)
INSTALL = Step("install", _without_its_release, _packages_are_there)
BENCH = Step("bench", _without_a_result, lambda _, tool: tool.says("requests of .* at a time", within=_BEGINS))
START = Step("start", _nothing, lambda _, tool: tool.says("stopping ddtree-vllm", within=_BEGINS))
GATE = Step("gate", _nothing, lambda _, tool: tool.says("> serve: gate", ".", "^    ", within=_BEGINS))
STEPS = (PUSH, INSTALL, BENCH, START, GATE)
