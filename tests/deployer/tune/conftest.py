"""The stand-in host that `tune` is tried on: by these speeds, on a clock that stands still, reached by the name `named`."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_host import BenchHost, Box
from calling import Caller
from tuning import reached_by_name, speed, standing_in, without_waiting


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)


@pytest.fixture
def box() -> Box:
    return Box(gpus="", speed=speed)


@pytest.fixture
def host(box: Box) -> BenchHost:
    return standing_in(box)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: BenchHost) -> Path:
    return reached_by_name(host, tmp_path / "box.toml", monkeypatch)
