"""A reader that goes away: a deployment is brought to its end, what only shows something ends."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from calling import Caller, write_inventory
from material import REPOSITORY, inventory_for

from deployer.cli.stream import Stream, Unread
from deployer.errors import Exit


class GoneTerminal(io.StringIO):
    """What a terminal is after its window was closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def fileno(self) -> int:
        raise io.UnsupportedOperation


def without_reader(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """The program with a stdout whose reader has gone already."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, "-m", "deployer", *map(str, words)],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
    finally:
        os.close(writing)


@pytest.fixture
def box(tmp_path: Path, drafter: Path) -> Path:
    service = f"ddtree-test-stream-{os.getpid()}"
    return write_inventory(inventory_for(tmp_path, drafter), tmp_path / "box.toml", service=service)


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_a_deployment_goes_on_to_its_end(box: Path, tmp_path: Path, json: list[str]) -> None:
    done = without_reader("--local", "push", box, *json)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "root/models/tiny-hybrid/config.json").is_file()
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_what_only_shows_something_ends_without_a_word(box: Path) -> None:
    done = without_reader("inventory", "show", box)
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "")


def test_several_hosts_go_on_as_well(box: Path, tmp_path: Path) -> None:
    done = without_reader("--local", "push", "--on", str(box))
    assert (tmp_path / "root/models/tiny-hybrid/config.json").is_file()
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_that_is_gone_is_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], box: Path, tmp_path: Path
) -> None:
    """Its error is another one than a pipe's."""
    call = Caller(capsys)
    monkeypatch.setattr(sys, "stdout", GoneTerminal())
    assert call("inventory", "show", box).code == Exit.INTERRUPTED
    assert call("--local", "push", box).code == 0
    assert (tmp_path / "root/models/tiny-hybrid/config.json").is_file()


def test_while_it_is_needed_a_lost_reader_is_an_error_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", GoneTerminal())
    stream = Stream("stdout", needed=True)
    for _ in range(2):
        with pytest.raises(Unread):
            stream.write("x")
    stream.needed = False
    assert stream.write("xy") == 2
