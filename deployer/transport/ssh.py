"""A host over SSH: Fabric makes the connections through the jump hosts, paramiko's channels carry the commands.

Fabric alone would accept any host key (it sets AutoAddPolicy and loads no known_hosts); here each hop is guarded
before it is
opened, and nothing of Fabric's own reading of SSH configs is used: `ssh -G` has decided everything.
"""

from __future__ import annotations

import logging
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

import fabric
import paramiko
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from deployer.errors import DeployError, TransferError
from deployer.inventory.model import Ssh
from deployer.transport import hostkeys, openssh
from deployer.transport.faults import LineBroken, explained
from deployer.transport.forward import Socket, listening
from deployer.transport.resolve import Hop, resolve
from deployer.transport.shell import TRY_BY_HAND, Raw, ShellTransport

CHUNK = 1 << 15  # paramiko's own packet size
KEEPALIVE = 15  # seconds
POLL = 0.02  # seconds between looks at a quiet channel
FAULTS = (OSError, EOFError, paramiko.SSHException)
# What goes wrong there arrives as an exception; for a logger without a handler Python would print it as a traceback, too.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _Connection(fabric.Connection):  # type: ignore[misc]
    """Whose end is quiet though the connection that it runs through is gone.

    paramiko's thread closes the channel it runs over, which sends a word through the connection beneath: without one it raises
    there, prints a traceback, and has not told those who wait for it.
    """

    def open_gateway(self) -> Any:
        beneath = super().open_gateway()
        close = beneath.close

        def close_quietly() -> None:
            with suppress(*FAULTS):
                close()

        beneath.close = close_quietly
        return beneath


class SshTransport(ShellTransport):
    """One host behind zero or more jump hosts.

    Connects when first used, and again if the connection was lost between commands.
    """

    def __init__(self, ssh: Ssh, *, name: str | None = None) -> None:
        super().__init__(name or ssh.host)
        self._ssh = ssh
        self.hops = resolve(ssh)
        self._connections: list[fabric.Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def connect(self) -> None:
        """Opens all hops, testing each by name; transport faults are tried three times, refusals are not."""
        for attempt in Retrying(
            retry=retry_if_exception_type(TransferError),
            stop=stop_after_attempt(3),
            wait=wait_exponential(min=0.5, max=4),
            reraise=True,
        ):
            with attempt:
                self._connect_once()

    def _connect_once(self) -> None:
        self._disconnect()
        for number, hop in enumerate(self.hops):
            connection = self._connection(hop)
            self._connections.append(connection)
            try:
                connection.open()
                connection.transport.set_keepalive(KEEPALIVE)
            except (DeployError, *FAULTS) as error:
                self._disconnect()
                raise explained(error, self.hops, number, self._trial(hop)) from error

    def _connection(self, hop: Hop) -> fabric.Connection:
        config = fabric.Config(overrides={"load_ssh_configs": False})
        timeout = self._ssh.connect_timeout
        connection = _Connection(
            hop.hostname,
            user=hop.user,
            port=hop.port,
            config=config,
            gateway=self._connections[-1] if self._connections else hop.proxy_command,
            connect_timeout=timeout,
            connect_kwargs={
                "key_filename": [str(key) for key in hop.identities if key.is_file()],
                "allow_agent": hop.use_agent,
                "look_for_keys": False,
                "banner_timeout": timeout,
                "auth_timeout": timeout,
                "channel_timeout": timeout,
            },
        )
        hostkeys.guard(connection.client, hop)
        return connection

    def _trial(self, hop: Hop) -> str:
        config = ["-F", str(self._ssh.config_file)] if self._ssh.config_file else []
        return shlex.join(["ssh", *config, hop.alias, "true"])

    def _session(self) -> Any:
        """A fresh channel; reconnects when the connection is gone, since no command of ours is running then."""
        if not self._connections or not self._connections[-1].is_connected:
            self.connect()
        try:
            return self._connections[-1].transport.open_session(timeout=self._ssh.connect_timeout)
        except FAULTS as error:
            raise self._lost(error) from error

    def _lost(self, error: object) -> LineBroken:
        return LineBroken(
            f"the connection broke: {str(error) or type(error).__name__}",
            where=self.name,
            remedy="run the same command again: what arrived is kept, finished steps are not repeated",
        )

    def _execute(self, command: str, stdin: bytes | None, timeout: float) -> Raw:
        channel = self._session()
        deadline = time.monotonic() + timeout
        out, err = bytearray(), bytearray()
        try:
            channel.settimeout(timeout)
            channel.exec_command(command)
            if stdin:
                with suppress(OSError):  # it may end without reading; its exit code says why
                    channel.sendall(stdin)
            channel.shutdown_write()
            if not _drained(channel, out, err, deadline):
                what = "its output did not end" if channel.exit_status_ready() else "no result"
                where = f"{self.name}: {command[:200]}"
                raise TransferError(f"{what} within {timeout:g} s", where=where, remedy=TRY_BY_HAND)
            return self._ended(channel, out, err)
        except FAULTS as error:
            raise self._lost(error) from error
        finally:
            _close(channel)

    def _ended(self, channel: Any, out: bytearray, err: bytearray) -> Raw:
        code = channel.recv_exit_status()
        if code < 0 or not (channel.eof_received or channel.get_transport().is_active()):
            raise self._lost("the host closed it before the command ended")
        return Raw(code, bytes(out), bytes(err))

    def _lines(self, command: str, timeout: float, ended: Callable[[int], None]) -> Iterator[str]:
        channel = self._session()
        try:
            channel.set_combine_stderr(True)
            channel.settimeout(timeout)
            channel.exec_command(command)
            channel.shutdown_write()
            for line in channel.makefile("rb"):
                yield line.decode(errors="replace").rstrip("\r\n")
            ended(self._ended(channel, bytearray(), bytearray()).returncode)
        except FAULTS as error:
            raise self._lost(error) from error
        finally:
            _close(channel)

    def _feed(self, command: str, source: BinaryIO, stall: float, sent: Callable[[int], None]) -> Raw:
        channel = self._session()
        out, err = bytearray(), bytearray()
        try:
            channel.settimeout(stall)
            channel.exec_command(command)
            while not channel.exit_status_ready() and (chunk := source.read(CHUNK)):
                channel.sendall(chunk)
                sent(len(chunk))
            channel.shutdown_write()
            if not _drained(channel, out, err, time.monotonic() + stall):
                raise TimeoutError
            return self._ended(channel, out, err)
        except TimeoutError as error:
            raise self._lost(f"stalled, nothing moved for {stall:g} s") from error
        except FAULTS as error:
            # A command that ends early closes its stdin: then its exit code is the news, not the broken pipe.
            if channel.exit_status_ready() and channel.recv_exit_status() >= 0:
                _drained(channel, out, err, time.monotonic() + stall)
                return self._ended(channel, out, err)
            raise self._lost(error) from error
        finally:
            _close(channel)

    @cached_property
    def openssh(self) -> tuple[str, ...]:
        self._folder = tempfile.TemporaryDirectory(prefix="ddtree-ssh-")
        path = Path(self._folder.name, "config")
        path.write_text(openssh.config(self.hops, connect_timeout=self._ssh.connect_timeout))
        return ("ssh", "-F", str(path), openssh.destination(self.hops))

    def forward(self, remote_host: str, remote_port: int, local_port: int = 0) -> AbstractContextManager[int]:
        def reach() -> Any:
            if not self._connections or not self._connections[-1].is_connected:
                self.connect()
            transport = self._connections[-1].transport
            return transport.open_channel("direct-tcpip", (remote_host, remote_port), ("127.0.0.1", 0), timeout=30)

        return listening(local_port, reach)

    def talk(self, command: str, *, sudo: bool = False) -> Socket:
        """Starts `command`; the socket is its stdin and stdout."""
        channel = self._session()
        try:
            channel.exec_command(self._wrapped(command, sudo))
        except FAULTS as error:
            _close(channel)
            raise self._lost(error) from error
        return cast(Socket, channel)

    def _disconnect(self) -> None:
        for connection in reversed(self._connections):
            with suppress(Exception):
                connection.close()
        self._connections = []

    def close(self) -> None:
        self._disconnect()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
            del self.openssh


def _close(channel: Any) -> None:
    """Ends a channel; on a broken line that fails too, and what broke it is the error to show."""
    with suppress(*FAULTS):
        channel.close()


def _drained(channel: Any, out: bytearray, err: bytearray, deadline: float) -> bool:
    """Takes all that comes until the command has ended and closed its output; False when `deadline` comes first.

    Its exit code alone says less: sshd sends that when the process ends, and what is still in its pipes later.
    """
    while True:
        ended = bool(channel.exit_status_ready() and channel.eof_received) or bool(channel.closed)
        while channel.recv_ready():
            out += channel.recv(CHUNK)
        while channel.recv_stderr_ready():
            err += channel.recv_stderr(CHUNK)
        if ended or time.monotonic() > deadline:
            return ended
        time.sleep(POLL)
