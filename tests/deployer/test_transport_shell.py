"""What all transports share, shown on this machine: wrapping, sudo, timeouts, atomic files."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from deployer.errors import PreflightError, TransferError
from deployer.transport.faults import LineBroken
from deployer.transport.local import LocalTransport
from deployer.transport.shell import CommandError, Raw


class Unprivileged(LocalTransport):
    """A stand-in for an account without root: records what it was to run, and answers as sudo without a sudoers line
    does.
    """

    uid = 1000
    said = b"sudo: a password is required\n"

    def __init__(self) -> None:
        super().__init__("box")
        self.executed: list[str] = []

    def _execute(self, command: str, stdin: bytes | None, timeout: float) -> Raw:
        self.executed.append(command)
        return Raw(1, b"", self.said) if command.startswith("sudo") else Raw(0, b"deploy\n", b"")


def test_sudo_is_asked_without_a_prompt_and_the_missing_line_is_named() -> None:
    box = Unprivileged()
    with pytest.raises(PreflightError) as caught:
        box.run("id -u", sudo=True)
    assert box.executed[0] == "sudo -n /bin/sh -c 'id -u'"
    assert "deploy ALL=(ALL) NOPASSWD: ALL" in str(caught.value)
    assert "/etc/sudoers.d/ddtree-deploy" in str(caught.value)


def test_a_failing_command_under_sudo_is_not_taken_for_a_missing_line() -> None:
    box = Unprivileged()
    box.said = b"ls: no such file\n"
    with pytest.raises(CommandError, match="no such file"):
        box.run("ls x", sudo=True)


def test_root_needs_no_sudo() -> None:
    box = Unprivileged()
    box.uid = 0
    box.run("id -u", sudo=True)
    assert box.executed == ["/bin/sh -c 'id -u'"]


def test_timeouts_end_the_command_and_its_children() -> None:
    local = LocalTransport()
    with pytest.raises(TransferError, match=r"no result within 0\.3 s"):
        local.run("sleep 60 & sleep 60", timeout=0.3)
    with pytest.raises(TransferError, match=r"did not end within 0\.3 s"):
        list(local.stream("echo one; sleep 60", timeout=0.3))


def test_a_file_whose_bytes_did_not_all_arrive_never_gets_its_name(tmp_path: Path) -> None:
    class Losing(LocalTransport):
        """A stand-in for a line that ends early."""

        def _execute(self, command: str, stdin: bytes | None, timeout: float) -> Raw:
            return super()._execute(command, stdin[:-1] if stdin else stdin, timeout)

    with pytest.raises(CommandError):
        Losing().write(b"whole", str(tmp_path / "file"))
    assert list(tmp_path.iterdir()) == [], "neither under its name nor under another"
    LocalTransport().write(b"whole", str(tmp_path / "file"), mode=0o600)
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_feeding_counts_what_left_and_reports_a_reader_that_stops() -> None:
    sent: list[int] = []
    result = LocalTransport().feed("wc -c", io.BytesIO(b"x" * 3_000_000), sent=sent.append)
    assert (result.stdout.strip(), sum(sent)) == ("3000000", 3_000_000)
    stopped = LocalTransport().feed("echo full >&2; exit 1", io.BytesIO(b"x" * 3_000_000), sent=sent.append)
    assert (stopped.returncode, stopped.stderr) == (1, "full\n")


def test_a_reader_that_never_answers_is_a_broken_line_and_is_ended() -> None:
    with pytest.raises(LineBroken, match=r"nothing moved for 0\.3 s"):
        LocalTransport().feed("cat >/dev/null; sleep 60", io.BytesIO(b"x"), stall=0.3, sent=lambda _: None)
