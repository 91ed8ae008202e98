"""`tune --take-gpu`: how long the host waits for it, and what it does when the host has not waited."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_host import SERVICE, BenchHost, Box, inventory
from standin_router import StandInRouter, door, listening, ticking
from tuning import BY_THE_SERVICE, applied, asked, ran, speed

from deployer.fleet import parting
from deployer.fleet.traffic import Routed
from deployer.tune.plan import confirming, measuring

ON_GPUS = inventory(install={"build": "cuda"})
HERE, OTHER = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


@pytest.fixture
def box() -> Box:
    """Its service holds the GPUs."""
    return Box(gpus=BY_THE_SERVICE, speed=speed)


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


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInRouter]:
    """It sends to this box and to another one."""
    with listening(StandInRouter({HERE: True, OTHER: True})) as made:
        behind = Routed(HERE, (door(made),), clock=ticking())
        monkeypatch.setattr(parting, "behind", lambda box, *, strict: behind)
        yield made


def test_a_box_is_out_of_its_routers_while_it_is_tuned_and_back_after(
    host: BenchHost, box: Box, router: StandInRouter, tmp_path: Path
) -> None:
    tune = asked(tmp_path / "f.toml", rounds=1)
    made = measuring(tune, ON_GPUS, host, take_gpu=True)
    assert made.steps[-1].reason.endswith("; edge must send nothing here before the service stops")
    assert router.asked == [], "planning asks nobody"
    sent = set[bool]()
    box.before_client = lambda what: sent.add(HERE in router.boxes)
    applied(made)
    assert (sent, HERE in router.boxes) == ({False}, True)
    assert (box.log[0], box.log[-1]) == (f"stop {SERVICE}", f"start {SERVICE}")


def test_a_confirmation_by_itself_takes_it_out_too(
    host: BenchHost, box: Box, router: StandInRouter, tmp_path: Path
) -> None:
    def cut(what: str) -> None:
        if what.startswith("tree:31@1+7@2 c2"):
            raise KeyboardInterrupt

    tune, box.before_client = asked(tmp_path / "f.toml", rounds=1), cut
    with pytest.raises(KeyboardInterrupt):
        applied(measuring(tune, ON_GPUS, host, take_gpu=True))
    box.gpus = BY_THE_SERVICE
    made = confirming(tune, ON_GPUS, host, take_gpu=True)
    assert "edge must send nothing here" in made.steps[-1].reason
    assert "edge" not in confirming(tune, ON_GPUS, host).steps[-1].reason, "nothing is stopped then"
