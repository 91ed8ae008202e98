"""This machine in place of a host: for `--local`, and for tests of everything above the transport."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO

from deployer.errors import TransferError
from deployer.transport.faults import LineBroken
from deployer.transport.forward import Socket, listening
from deployer.transport.shell import TRY_BY_HAND, Raw, ShellTransport

CHUNK = 1 << 20


class LocalTransport(ShellTransport):
    """Runs commands here, by /bin/sh."""

    def __init__(self, name: str = "local") -> None:
        super().__init__(name)

    @property
    def openssh(self) -> None:
        return None

    def _execute(self, command: str, stdin: bytes | None, timeout: float) -> Raw:
        with self._started(command) as process:
            try:
                out, err = process.communicate(stdin or b"", timeout=timeout)
            except subprocess.TimeoutExpired as error:
                os.killpg(process.pid, signal.SIGKILL)
                raise TransferError(
                    f"no result within {timeout:g} s", where=f"{self.name}: {command}", remedy=TRY_BY_HAND
                ) from error
        return Raw(process.returncode, out, err)

    def _lines(self, command: str, timeout: float, ended: Callable[[int], None]) -> Iterator[str]:
        with self._started(command, merged=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            timer = threading.Timer(timeout, os.killpg, (process.pid, signal.SIGKILL))
            timer.start()
            try:
                for line in process.stdout:
                    yield line.decode(errors="replace").rstrip("\r\n")
            finally:
                timer.cancel()
        if process.returncode == -signal.SIGKILL:
            raise TransferError(
                f"did not end within {timeout:g} s", where=f"{self.name}: {command}", remedy=TRY_BY_HAND
            )
        ended(process.returncode)

    def _feed(self, command: str, source: BinaryIO, stall: float, sent: Callable[[int], None]) -> Raw:
        with self._started(command) as process:
            assert process.stdin is not None
            try:
                while chunk := source.read(CHUNK):
                    process.stdin.write(chunk)
                    process.stdin.flush()
                    sent(len(chunk))
            except BrokenPipeError:
                pass  # its exit code and stderr say why it stopped reading
            try:
                out, err = process.communicate(timeout=stall)
            except subprocess.TimeoutExpired as error:
                os.killpg(process.pid, signal.SIGKILL)
                what = f"stalled, nothing moved for {stall:g} s"
                raise LineBroken(what, where=self.name, remedy="run the same command again") from error
        return Raw(process.returncode, out, err)

    def forward(self, remote_host: str, remote_port: int, local_port: int = 0) -> AbstractContextManager[int]:
        return listening(local_port, lambda: socket.create_connection((remote_host, remote_port), timeout=30))

    def talk(self, command: str, *, sudo: bool = False) -> Socket:
        """Starts `command`; the socket is its stdin and stdout."""
        near, far = socket.socketpair()
        with far:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self._wrapped(command, sudo)],
                stdin=far.fileno(),
                stdout=far.fileno(),
                start_new_session=True,
            )
        threading.Thread(target=process.wait, daemon=True).start()
        return near

    def connect(self) -> None:
        """It is here."""

    def close(self) -> None:
        """Nothing is open between commands."""

    @staticmethod
    def _started(command: str, *, merged: bool = False) -> subprocess.Popen[bytes]:
        pipe, stderr = subprocess.PIPE, subprocess.STDOUT if merged else subprocess.PIPE
        return subprocess.Popen(
            ["/bin/sh", "-c", command], stdin=pipe, stdout=pipe, stderr=stderr, start_new_session=True
        )
