"""The four things a step may ask of a host: run, put, get, forward. Everything else is built on these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

SILENCE = 300.0
"""Seconds without a word after which the two ends take each other for lost: the deployer a command of the engine's that
says nothing, the host a deployer whose switch is under way. vLLM's own parser takes 71 s on a disk that has none of its
bytecode; nobody wants to be without a service for longer because a laptop is asleep.
"""


@dataclass(frozen=True)
class Result:
    """A finished remote command. `stdout` and `stderr` are text, undecodable bytes replaced."""

    command: str
    returncode: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.returncode == 0


class Transport(Protocol):
    """One host. Transport faults raise TransferError;
    a command that ran and failed is a Result (or, with check, a DeployError).
    """

    @property
    def name(self) -> str:
        """The host as the operator calls it."""
        ...

    def run(
        self, command: str, *, sudo: bool = False, check: bool = True, timeout: float = 60.0, stdin: bytes | None = None
    ) -> Result:
        """Runs `command` by the remote login shell's /bin/sh -c; `timeout` in seconds without a result.

        `sudo` means `sudo -n` (nothing when already root). Secrets go through `stdin`, never through `command`.
        """
        ...

    def stream(self, command: str, *, sudo: bool = False, timeout: float = 3600.0) -> Iterator[str]:
        """Runs `command` and yields its output line by line (stdout and stderr merged); raises on a non-zero exit."""
        ...

    def put(self, local: Path, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        """Writes one small file: to a temporary name beside `remote`, fsync, rename.

        Large files go through deployer.push.
        """
        ...

    def get(self, remote: str, local: Path, *, sudo: bool = False) -> None:
        """Reads one file into `local` (temporary name, then rename)."""
        ...

    def write(self, data: bytes, remote: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        """Like `put`, from memory."""
        ...

    def feed(
        self, command: str, source: BinaryIO, *, sudo: bool = False, stall: float = 60.0, sent: Callable[[int], None]
    ) -> Result:
        """Runs `command` with the rest of `source` as its stdin; calls `sent` with each count of bytes that left.

        Raises TransferError when the connection breaks or nothing moves for `stall` seconds.
        """
        ...

    def hold(self, command: str, source: BinaryIO, *, sudo: bool = False, stall: float = 60.0) -> None:
        """Runs `command`, whose stdin ends when `source` does: nothing else of it has to arrive. Faults as of `feed`."""
        ...

    @property
    def openssh(self) -> tuple[str, ...] | None:
        """The OpenSSH command and destination that reach this host by the same rules, for rsync; None when it is this
        machine."""
        ...

    def forward(self, remote_host: str, remote_port: int, local_port: int = 0) -> AbstractContextManager[int]:
        """Opens 127.0.0.1:<local_port> to remote_host:remote_port as seen from the host; yields the local port."""
        ...

    def close(self) -> None:
        """Ends the connection; idempotent."""
        ...
