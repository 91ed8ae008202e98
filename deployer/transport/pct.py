"""A container without sshd, through its Proxmox host: commands by `pct exec`, files by `pct push`, ports by its network
namespace.

What goes into a command is small and counted, or lies in a file before the command starts: a stream through `pct exec`
is known to hang, and whether its end arrives is not to be relied on.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO

from deployer.errors import PreflightError
from deployer.inventory.model import Pct
from deployer.transport.base import Result
from deployer.transport.faults import LineBroken
from deployer.transport.forward import Socket, listening
from deployer.transport.local import LocalTransport
from deployer.transport.shell import Raw, ShellTransport
from deployer.transport.ssh import SshTransport

SMALL = 1 << 15  # bytes; half of what a pipe holds, so that no writer waits for a reader
SPOOL = "/run"  # memory on both sides, and only root writes there
PUSH = 7200.0  # seconds for one `pct push`
_PATH = "PATH=$PATH:/usr/sbin:/sbin"
# What a login would bring; without it the container gets the node's language and variables.
_CLEAN = "/usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Runs on the node, inside the container's network: joins its stdin and stdout to a port there.
_RELAY = """
import os, socket, sys, threading
far = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
far.settimeout(None)
def there():
    while data := os.read(0, 65536):
        far.sendall(data)
    far.shutdown(socket.SHUT_WR)
threading.Thread(target=there, daemon=True).start()
while data := far.recv(65536):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]
"""


class PctTransport(ShellTransport):
    """Container `pct.vmid` of the Proxmox host `node`; whoever may run pct there is root in it."""

    def __init__(self, node: SshTransport | LocalTransport, pct: Pct, *, name: str) -> None:
        super().__init__(name)
        self.node, self._pct = node, pct
        self.uid = 0

    @property
    def vmid(self) -> int:
        return self._pct.vmid

    @property
    def where(self) -> str:
        return f"container {self.vmid} on {self.node.name}"

    @property
    def openssh(self) -> None:
        return None

    def connect(self) -> None:
        """Reaches the node and sees that the container runs. PreflightError if not."""
        self.node.connect()
        result = self._on_node(f"pct status {self.vmid}")
        if result.returncode == 127:
            raise PreflightError(
                f"{self.node.name} has no pct: it is no Proxmox host",
                where="[pct]",
                remedy="with [pct], [ssh] reaches the container's Proxmox host; without it, the box itself",
            )
        if not result.ok:
            raise PreflightError(
                f"no container {self.vmid}: {result.stderr.strip()[-200:]}",
                where=self.node.name,
                remedy=f"correct [pct] vmid; `pct list` on {self.node.name} shows what there is",
            )
        if (state := result.stdout.strip().removeprefix("status: ")) != "running":
            raise PreflightError(
                f"container {self.vmid} is {state}",
                where=self.node.name,
                remedy=f"on {self.node.name}: pct start {self.vmid}",
            )

    def stage(self, name: str) -> str:
        """The absolute path on the node for something on its way into the container."""
        return f"{self._pct.stage}/{self.vmid}/{name}"

    def bring(self, staged: str, remote: str) -> Result:
        """Copies a file of the node into the container, as root's, 0600; whether that went well is in the result."""
        words = shlex.join(["pct", "push", str(self.vmid), staged, remote, "--perms", "0600"])
        result = self.node.run(f"{_PATH}; exec {words}", sudo=True, check=False, timeout=PUSH)
        self._still_there(Raw(result.returncode, b"", result.stderr.encode()))
        return result

    def forward(self, remote_host: str, remote_port: int, local_port: int = 0) -> AbstractContextManager[int]:
        entered = f'{_PATH}; pid=$(lxc-info -n {self.vmid} -pH) && exec nsenter -t "$pid" -n --'
        probe = self.node.run(f"{entered} python3 -I -S -c ''", sudo=True, check=False)
        if not probe.ok:
            raise PreflightError(
                f"the container's network cannot be entered: {probe.stderr.strip()[-200:]}",
                where=self.node.name,
                remedy="it takes lxc-info, nsenter and python3 there; or start sshd in the container and leave out [pct]",
            )
        words = shlex.join(["python3", "-I", "-S", "-c", _RELAY, remote_host, str(remote_port)])

        def reach() -> Socket:
            return self.node.talk(f"{entered} {words}", sudo=True)

        return listening(local_port, reach)

    def hold(self, command: str, source: BinaryIO, *, sudo: bool = False, stall: float = 60.0) -> None:
        """Straight through `pct exec`: should the end of the input not arrive there, `command` waits for longer."""
        whole = self.node._wrapped(f"{_PATH}; exec {self._entering(self._wrapped(command, sudo))}", True)
        self._still_there(self.node._feed(whole, source, stall, lambda _: None))

    def close(self) -> None:
        self.node.close()

    def _wrapped(self, command: str, sudo: bool) -> str:
        return f"/bin/sh -c {shlex.quote(command)}"

    def _entering(self, command: str) -> str:
        """The words, for the node's shell, that run a wrapped command inside."""
        return f"pct exec {self.vmid} -- {_CLEAN} {command}"

    def _execute(self, command: str, stdin: bytes | None, timeout: float) -> Raw:
        if stdin and len(stdin) > SMALL:
            return self._feed(command, io.BytesIO(stdin), timeout, lambda _: None)
        # Counted: it does not wait for an end of input that may never come.
        counted = self._wrapped(f"head -c {len(stdin)} | {command}", False) if stdin else command
        source = "" if stdin else " </dev/null"
        whole = self.node._wrapped(f"{_PATH}; exec {self._entering(counted)}{source}", True)
        return self._still_there(self.node._execute(whole, stdin, timeout))

    def _lines(self, command: str, timeout: float, ended: Callable[[int], None]) -> Iterator[str]:
        whole = self.node._wrapped(f"{_PATH}; exec {self._entering(command)} </dev/null", True)
        yield from self.node._lines(whole, timeout, ended)

    def _feed(self, command: str, source: BinaryIO, stall: float, sent: Callable[[int], None]) -> Raw:
        """By way of a file on the node and one inside, both gone before the command ends."""
        inside = self._wrapped(f'exec <"$0" && rm -f "$0" && {command}', False)
        steps = (
            f'{_PATH}; umask 077; f=$(mktemp {SPOOL}/ddtree-XXXXXX) && trap \'rm -f "$f"\' EXIT && cat >"$f" && '
            f'pct push {self.vmid} "$f" "$f.in" --perms 0600 && {self._entering(inside)} "$f.in" </dev/null'
        )
        return self._still_there(self.node._feed(self.node._wrapped(steps, True), source, stall, sent))

    def _on_node(self, command: str) -> Result:
        return self.node.run(f"{_PATH}; {command}", sudo=True, check=False)

    def _still_there(self, raw: Raw) -> Raw:
        """The same; LineBroken when the container went away under the command."""
        if raw.returncode == 255 or raw.stderr.startswith(b"lxc-attach: "):
            said = self._on_node(f"pct status {self.vmid}").stdout.strip()
            if said != "status: running":
                raise LineBroken(
                    f"the container went away: {said or 'pct does not know it'}",
                    where=self.where,
                    remedy=f"pct start {self.vmid} there, then run the same command again",
                )
        return raw
