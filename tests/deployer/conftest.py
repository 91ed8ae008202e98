"""Fixtures of the deployer's tests; what they are made of is in material.py and sshd.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from material import TINY_PROFILE, write_checkpoint
from sshd import SSHD, Servers

from deployer.checkpoint import profiles, shapes
from deployer.checkpoint.profiles import Profile


@pytest.fixture
def profile() -> Profile:
    return profiles.load(str(TINY_PROFILE))


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


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests neither use nor fill the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
