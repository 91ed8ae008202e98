"""What all transports share: how a command is wrapped, how a small file is written, how a failure reads."""

from __future__ import annotations

import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from deployer.errors import DeployError, PreflightError
from deployer.transport.base import Result

TRY_BY_HAND = "run it there by hand to see more"
SHOWN = 400  # characters of a command or of its output in an error


@dataclass(frozen=True)
class Raw:
    """A finished command, its output as bytes."""

    returncode: int
    stdout: bytes
    stderr: bytes


class CommandError(DeployError):
    """A command ran on the host and failed."""

    def __init__(self, host: str, result: Result) -> None:
        said = (result.stderr.strip() or result.stdout.strip() or "it printed nothing")[-SHOWN:]
        super().__init__(
            f"a command failed with {result.returncode}: {said}",
            where=f"{host}: {_shortened(result.command)}",
            remedy=TRY_BY_HAND,
        )
        self.result = result


class ShellTransport(ABC):
    """A host that takes shell commands. Subclasses say how one is executed; all else is here."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @abstractmethod
    def _execute(self, command: str, stdin: bytes | None, timeout: float) -> Raw:
        """Runs a wrapped command to its end. Raises TransferError on a transport fault or after `timeout` seconds."""

    @abstractmethod
    def _lines(self, command: str, timeout: float, ended: Callable[[int], None]) -> Iterator[str]:
        """Yields merged output line by line, then calls `ended` with the exit code."""

    @abstractmethod
    def _feed(self, command: str, source: BinaryIO, stall: float, sent: Callable[[int], None]) -> Raw:
        """Runs a wrapped command with `source` as its stdin (see Transport.feed)."""

    @property
    @abstractmethod
    def openssh(self) -> tuple[str, ...] | None:
        """See Transport.openssh."""

    @abstractmethod
    def forward(self, remote_host: str, remote_port: int, local_port: int = 0) -> AbstractContextManager[int]:
        """See Transport.forward."""

    @abstractmethod
    def close(self) -> None:
        """See Transport.close."""

    @cached_property
    def uid(self) -> int:
        """The numeric account on the host."""
        return int(self._execute("/bin/sh -c 'id -u'", None, 30.0).stdout.strip() or b"-1")

    def run(
        self, command: str, *, sudo: bool = False, check: bool = True, timeout: float = 60.0, stdin: bytes | None = None
    ) -> Result:
        return self._finished(command, self._execute(self._wrapped(command, sudo), stdin, timeout), sudo, check)

    def stream(self, command: str, *, sudo: bool = False, timeout: float = 3600.0) -> Iterator[str]:
        codes: list[int] = []
        tail: list[str] = []
        for line in self._lines(self._wrapped(f"exec 2>&1; {command}", sudo), timeout, codes.append):
            tail = [*tail[-7:], line]
            yield line
        if codes != [0]:
            raw = Raw(codes[0] if codes else -1, b"", "\n".join(tail).encode())
            self._finished(command, raw, sudo, check=True)

    def put(self, local: Path, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        self.write(local.read_bytes(), remote, mode=mode, sudo=sudo)

    def write(self, data: bytes, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        target, temporary = shlex.quote(remote), shlex.quote(f"{remote}.part")
        # The length is compared because a lost connection looks like the end of the input.
        command = (
            f"umask 077 && cat >{temporary} && test $(stat -c %s {temporary}) = {len(data)} && "
            f"chmod {mode:o} {temporary} && sync {temporary} && mv -fT {temporary} {target} || "
            f"{{ code=$?; rm -f {temporary}; exit $code; }}"
        )
        self.run(command, sudo=sudo, stdin=data)

    def get(self, remote: str, local: Path, *, sudo: bool = False) -> None:
        command = f"cat {shlex.quote(remote)}"
        raw = self._execute(self._wrapped(command, sudo), None, 600.0)
        self._finished(command, Raw(raw.returncode, b"", raw.stderr), sudo, check=True)
        temporary = local.with_name(local.name + ".part")
        temporary.write_bytes(raw.stdout)
        os.replace(temporary, local)

    def feed(
        self, command: str, source: BinaryIO, *, sudo: bool = False, stall: float = 60.0, sent: Callable[[int], None]
    ) -> Result:
        raw = self._feed(self._wrapped(command, sudo), source, stall, sent)
        return self._finished(command, raw, sudo, check=False)

    def hold(self, command: str, source: BinaryIO, *, sudo: bool = False, stall: float = 60.0) -> None:
        self.feed(command, source, sudo=sudo, stall=stall, sent=lambda _: None)

    def _wrapped(self, command: str, sudo: bool) -> str:
        prefix = "sudo -n " if sudo and self.uid != 0 else ""
        return f"{prefix}/bin/sh -c {shlex.quote(command)}"

    def _finished(self, command: str, raw: Raw, sudo: bool, check: bool) -> Result:
        stderr = raw.stderr.decode(errors="replace")
        result = Result(command, raw.returncode, raw.stdout.decode(errors="replace"), stderr)
        if sudo and self.uid != 0 and raw.returncode and _sudo_refused(stderr):
            raise self._no_sudo(stderr)
        if check and not result.ok:
            raise CommandError(self.name, result)
        return result

    def _no_sudo(self, stderr: str) -> PreflightError:
        account = self._execute("/bin/sh -c 'id -un'", None, 30.0).stdout.decode(errors="replace").strip()
        file, line = "/etc/sudoers.d/ddtree-deploy", f"{account} ALL=(ALL) NOPASSWD: ALL"
        return PreflightError(
            f"sudo wants a password or refuses {account}: {stderr.strip().splitlines()[0]}",
            where=self.name,
            remedy=f"as root there: echo '{line}' > {file} && chmod 440 {file}",
        )


def _sudo_refused(stderr: str) -> bool:
    return any(
        line.startswith("sudo: ") or " is not in the sudoers file" in line or "sudo: not found" in line
        for line in stderr.splitlines()
    )


def _shortened(command: str) -> str:
    return command if len(command) <= SHOWN else command[:SHOWN] + " ..."
