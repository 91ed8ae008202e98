"""Stand-ins for hosts. FakeTransport is one: it answers from a table and records what it was asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import planted

from deployer.transport.base import Result
from deployer.transport.shell import Raw, ShellTransport

Answer = str | Result | Callable[[str], str]


class FakeTransport(ShellTransport):
    """A stand-in for a host: commands are looked up in `answers`, exactly or by pattern; an unknown one fails the test.

    `commands` holds every command as the caller gave it, with "sudo " before it where asked; `written` every file.
    """

    def __init__(self, answers: Mapping[str | re.Pattern[str], Answer], uid: int = 0, name: str = "box") -> None:
        super().__init__(name)
        self.answers, self.uid = dict(answers), uid
        self.commands: list[str] = []
        self.written: dict[str, bytes] = {}

    def run(
        self, command: str, *, sudo: bool = False, check: bool = True, timeout: float = 60.0, stdin: bytes | None = None
    ) -> Result:
        assert planted.SECRET not in command, "a secret is in a command line"
        self.commands.append(f"sudo {command}" if sudo else command)
        answer = self._answer(command)
        result = answer if isinstance(answer, Result) else Result(command, 0, answer, "")
        raw = Raw(result.returncode, result.stdout.encode(), result.stderr.encode())
        return self._finished(command, raw, sudo=False, check=check)

    def stream(self, command: str, *, sudo: bool = False, timeout: float = 3600.0) -> Iterator[str]:
        yield from self.run(command, sudo=sudo).stdout.splitlines()

    def write(self, data: bytes, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        self.commands.append(f"{'sudo ' if sudo else ''}write {remote} {mode:o}")
        self.written[remote] = data

    def get(self, remote: str, local: Path, *, sudo: bool = False) -> None:
        local.write_text(self.run(f"cat {remote}", sudo=sudo).stdout)

    def feed(
        self, command: str, source: BinaryIO, *, sudo: bool = False, stall: float = 60.0, sent: Callable[[int], None]
    ) -> Result:
        sent(len(source.read()))
        return self.run(command, sudo=sudo, check=False)

    def hold(self, command: str, source: BinaryIO, *, sudo: bool = False, stall: float = 60.0) -> None:
        self.run(command, sudo=sudo, check=False)
        source.read()

    def watched(self, command: str) -> str | Result:
        """What `systemctl is-active -q UNIT` says of a transient unit: it is active from its start on."""
        unit = command.rsplit(maxsplit=1)[-1]
        begun = any("systemd-run" in earlier and unit in earlier for earlier in self.commands)
        return "" if begun else Result(command, 3, "", "")

    @property
    def openssh(self) -> None:
        return None

    def forward(self, remote_host: str, remote_port: int, local_port: int = 0) -> AbstractContextManager[int]:
        raise AssertionError("FakeTransport has no ports")

    def close(self) -> None:
        self.commands.append("close")

    def _answer(self, command: str) -> str | Result:
        found = self.answers.get(command)
        if found is None:
            patterns = (
                value for key, value in self.answers.items() if isinstance(key, re.Pattern) and key.search(command)
            )
            found = next(patterns, None)
        if found is None:
            raise AssertionError(f"nobody told the fake host what to answer to:\n{command}")
        return found(command) if callable(found) else found

    def _execute(self, command: str, stdin: bytes | None, timeout: float) -> Raw:
        raise AssertionError(f"not through run: {command}")

    def _lines(self, command: str, timeout: float, ended: Callable[[int], None]) -> Iterator[str]:
        raise AssertionError(f"not through run: {command}")

    def _feed(self, command: str, source: BinaryIO, stall: float, sent: Callable[[int], None]) -> Raw:
        raise AssertionError(f"not through run: {command}")
