"""Shared material: small drafter checkpoints written by hand, and the profile that fits them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from sshd import SSHD, Servers

from deployer.checkpoint import profiles, shapes
from deployer.checkpoint.profiles import Profile
from deployer.inventory.model import Inventory

REPOSITORY = Path(__file__).parents[2]


def write_checkpoint(path: Path, tensors: dict[str, tuple[int, ...]], *, dtype: str = "BF16") -> Path:
    """Writes a safetensors file whose tensors' bytes are all 0x3f (about 0.75 in BF16)."""
    header, offset = {}, 0
    for name, shape in tensors.items():
        end = offset + math.prod(shape) * 2
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\x3f" * offset)
    return path


@pytest.fixture
def profile() -> Profile:
    return profiles.load(str(REPOSITORY / "inventory/profiles/tiny-hybrid.toml"))


@pytest.fixture
def drafter(tmp_path: Path, profile: Profile) -> Path:
    """A checkpoint that fits the tiny profile."""
    return write_checkpoint(tmp_path / "drafter.safetensors", shapes.tensors(profile.shapes))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Two real SSH servers on loopback, one behind the other."""
    if SSHD is None:
        pytest.skip("sshd is not installed: apt-get install openssh-server")
    running = Servers(tmp_path)
    yield running
    running.stop()


def inventory_for(folder: Path, drafter: Path, **target: str) -> Inventory:
    """An inventory whose host is this machine and whose root is in `folder`."""
    return Inventory.model_validate(
        {
            "name": "here",
            "root": f"{folder}/root",
            "ssh": {"host": "localhost"},
            "drafter": {"file": drafter, "profile": str(REPOSITORY / "inventory/profiles/tiny-hybrid.toml")},
            "target": {"path": f"{folder}/root/models/target", **target},
            "install": {"build": "cpu"},
            "serve": {"served_model_name": "tiny"},
        }
    )


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests neither use nor fill the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
