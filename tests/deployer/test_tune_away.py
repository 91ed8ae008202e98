"""`tune --take-gpu`: how long the host waits for it, and what it does when the host has not waited."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench_host import BenchHost, Box, inventory
from tuning import BY_THE_SERVICE, applied, asked, ran, speed, standing_in, without_waiting

from deployer.tune.plan import measuring

ON_GPUS = inventory(install={"build": "cuda"})


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)


@pytest.fixture
def box() -> Box:
    """Its service holds the GPUs."""
    return Box(gpus=BY_THE_SERVICE, speed=speed)


@pytest.fixture
def host(box: Box) -> BenchHost:
    return standing_in(box)


def limits(loads: int, cells: int) -> int:
    """Seconds: every start and every client at its own."""
    return loads * ON_GPUS.serve.gate_timeout + cells * 3600


def patience(host: BenchHost) -> list[int]:
    """Seconds after which the host goes back whatever it hears, of each absence of the service."""
    return [int(seconds) for command in host.commands for seconds in re.findall(r"timeout (\d+) /bin/sh", command)]


def test_the_host_waits_for_the_measurement_and_the_whole_of_its_confirmation(
    host: BenchHost, box: Box, tmp_path: Path
) -> None:
    applied(measuring(asked(tmp_path / "f.toml"), ON_GPUS, host, take_gpu=True))
    assert patience(host) == [limits(7, 16) + limits(5, 12)]


def test_what_is_left_of_the_measurement_does_not_shorten_the_time_for_its_confirmation(
    host: BenchHost, box: Box, tmp_path: Path
) -> None:
    """Two clients of the measurement are left when it is cut: its last arm's in the last round."""

    def cut(what: str) -> None:
        if len(ran(box)) == 3 * 8 - 2:
            raise KeyboardInterrupt

    tune, box.before_client = asked(tmp_path / "f.toml", rounds=3), cut
    with pytest.raises(KeyboardInterrupt):
        applied(measuring(tune, ON_GPUS, host, take_gpu=True))
    box.gpus, box.before_client, box.log = BY_THE_SERVICE, lambda what: None, []
    host.commands.clear()
    applied(measuring(tune, ON_GPUS, host, take_gpu=True))
    assert len(ran(box)) == 2 + 3 * 3 * 2
    assert patience(host) == [limits(1, 2) + limits(7, 18)]
