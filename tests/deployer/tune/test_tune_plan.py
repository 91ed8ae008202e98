"""`tune --plan`: what would be done, whatever the host is busy with; and nothing is changed anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_host import BenchHost, Box, inventory
from calling import Caller
from tuning import BY_THE_SERVICE, WORDS, reached_by_name

from deployer.errors import Exit


def test_on_the_gpus_of_a_service_it_says_what_it_would_take_and_leaves_the_rest_open(
    call: Caller, host: BenchHost, box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.gpus, subject = BY_THE_SERVICE, inventory(install={"build": "cuda"})
    named = reached_by_name(host, tmp_path / "box.toml", monkeypatch, subject)
    made = call.json("tune", named, *WORDS, "--plan")
    assert made.exit_code == Exit.OK, made.error
    measure, confirm, write = made.steps or []
    assert (measure.state, confirm.state, write.state) == ("unneeded", "undecided", "undecided")
    assert "skipped: GPU 0, 1 is in use; --take-gpu stops the service" in measure.reason
    assert confirm.reason == "decided after measure (8 of 8 measurements are missing)"
    assert (made.tune, box.log) == (None, [])
    assert call("tune", named, *WORDS).code == Exit.PREFLIGHT, "without --plan nothing would have been tuned"


def test_it_writes_no_results(call: Caller, host: BenchHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = reached_by_name(host, tmp_path / "box.toml", monkeypatch)
    assert call.json("tune", named, *WORDS).exit_code == Exit.OK
    before = sorted(tmp_path.iterdir())
    planned = call.json("tune", named, *WORDS, "--plan", "--out", tmp_path / "a.json", "--html", tmp_path / "a.html")
    assert planned.exit_code == Exit.OK
    assert planned.tune is not None, "what was found is shown"
    assert sorted(tmp_path.iterdir()) == before
