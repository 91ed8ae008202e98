"""A host that fetches from the hub: this machine, with the engine's own huggingface_hub and stand-ins for its units."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from material import REPOSITORY
from recorder import Recorder
from units_stand_in import Units

from deployer.hub import job, plan
from deployer.inventory.model import Inventory
from deployer.plan import apply
from deployer.transport.local import LocalTransport

ENGINE = REPOSITORY / "build/engine"
MARKS = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(not (ENGINE / "bin/python").exists(), reason="huggingface_hub is the engine's: make engine"),
]


@contextmanager
def hurried(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Units]:
    """Its units, which look and give up in no time."""
    monkeypatch.setattr(job, "EVERY", 0.05)
    monkeypatch.setattr(job, "PIECE", 4096)
    monkeypatch.setattr(job, "ATTEMPTS", 2)
    monkeypatch.setattr(job, "LONGEST", 0.1)
    monkeypatch.setattr(job, "RUN", str(folder / "run"))
    (folder / "run").mkdir()
    running = Units(folder, monkeypatch)
    yield running
    running.kill()


def install(root: Path) -> None:
    """A release whose Python is the engine's."""
    release = root / "releases/one"
    release.mkdir(parents=True)
    (release / "venv").symlink_to(ENGINE)
    (root / "current").symlink_to(release)


def fetched(inventory: Inventory, recorder: Recorder | None = None) -> Recorder:
    recorder, local = recorder or Recorder(), LocalTransport()
    apply.run(plan.plan(inventory, local), recorder)
    return recorder
