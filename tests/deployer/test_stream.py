"""A reader that goes away, a stream that is closed from the start, a disk that is full: a deployment is brought to its end,
what only shows something ends.
"""

from __future__ import annotations

import errno
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from calling import Caller, write_inventory
from material import REPOSITORY, inventory_for

from deployer.cli.stream import Stream, Unread, Unwritable
from deployer.errors import Exit


class GoneTerminal(io.StringIO):
    """What a terminal is after its window was closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def fileno(self) -> int:
        raise io.UnsupportedOperation


class FullDisk(io.StringIO):
    """What a file is on a disk without room."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fileno(self) -> int:
        raise io.UnsupportedOperation


def shell(words: str, redirected: str) -> subprocess.CompletedProcess[str]:
    """The program as a shell starts it with its streams redirected."""
    command = f"exec {shlex.quote(sys.executable)} -m deployer {words} {redirected}"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False, env=environment
    )


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


@pytest.mark.parametrize("words", ["--help", "check --help", "bench --help", "inventory", "--version"])
def test_so_do_help_and_version(words: str) -> None:
    done = without_reader(*words.split())
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


@pytest.mark.parametrize(("words", "unbuffered"), [("--help", ""), ("--version", "1"), ("inventory list", "")])
def test_a_stdout_that_takes_no_more_is_one_error(monkeypatch: pytest.MonkeyPatch, words: str, unbuffered: str) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    done = shell(words, ">/dev/full")
    assert done.returncode == Exit.USAGE
    assert done.stderr.startswith("error: the output cannot be written: No space left on device\n  where: stdout\n")
    assert done.stderr.count("error") == 1


def test_a_document_that_cannot_be_written_is_not_a_success(box: Path) -> None:
    done = shell(f"inventory show {shlex.quote(str(box))} --json", ">/dev/full")
    assert done.returncode == Exit.USAGE
    assert "error: the output cannot be written: No space left on device" in done.stderr


@pytest.mark.parametrize("json", ["", "--json"])
def test_a_deployment_goes_on_beside_a_full_disk_and_says_so_once(box: Path, tmp_path: Path, json: str) -> None:
    done = shell(f"--local push {shlex.quote(str(box))} {json}", ">/dev/full")
    assert (tmp_path / "root/models/tiny-hybrid/config.json").is_file()
    assert (done.returncode, done.stderr.count("error: the output cannot be written")) == (0, 1), done.stderr


def test_what_is_wrong_is_an_exit_code_where_stderr_takes_no_more(box: Path) -> None:
    assert shell("inventory show nosuch", "2>/dev/full").returncode == Exit.USAGE


@pytest.mark.parametrize(
    ("words", "redirected", "code"),
    [
        ("--help", ">&-", Exit.OK),
        ("inventory list", "<&- >&- 2>&-", Exit.OK),
        ("inventory show nosuch", "2>&-", Exit.USAGE),
        ("chekc", ">&-", Exit.USAGE),
    ],
)
def test_a_stream_that_is_closed_from_the_start_is_nobodys(words: str, redirected: str, code: Exit) -> None:
    done = shell(words, redirected)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_a_deployment_with_all_streams_closed_is_whole(box: Path, tmp_path: Path) -> None:
    """What it opens and what its children print must not meet in the numbers that are free."""
    done = shell(f"--local push {shlex.quote(str(box))}", "<&- >&- 2>&-")
    assert done.returncode == 0
    assert (tmp_path / "root/models/tiny-hybrid/config.json").is_file()


def test_only_a_reader_that_has_gone_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], box: Path
) -> None:
    monkeypatch.setattr(sys, "stdout", FullDisk())
    assert Caller(capsys)("inventory", "show", box).code == Exit.USAGE
    stream = Stream("stdout", needed=True)
    for _ in range(2):
        with pytest.raises(Unwritable, match="No space left"):
            stream.write("x")
