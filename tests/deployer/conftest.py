"""Fixtures of the deployer's tests; what they are made of is in material.py and sshd.py."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import planted
import pytest
from material import TINY_PROFILE, write_checkpoint
from serving import Host, Machine
from sshd import SSHD, Servers

from deployer.checkpoint import profiles, shapes
from deployer.checkpoint.profiles import Profile

planted.watch_command_lines()
planted.plant()


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


@pytest.fixture(autouse=True)
def _no_secret_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test of this room: whatever it wrote and whatever it ran is searched for the planted secret."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    assert folder is None or planted.leaks(folder) == []
    assert planted.argv_leaks == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Whatever a test printed or logged is searched as well."""
    report = yield
    shown = [title for title, text in report.sections if planted.SECRET in text]
    if shown:
        report.outcome, report.longrepr = "failed", f"the planted secret is in: {', '.join(shown)}"
    return report


@pytest.fixture
def machine() -> Machine:
    """The memory of a host that is a stand-in."""
    return Machine()


@pytest.fixture
def host(machine: Machine) -> Host:
    """A stand-in for a host that serves."""
    return Host(machine)
