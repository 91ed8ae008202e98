"""One large file by the system's own ssh: as fast as the line and the machines are, at about twice the pace of a channel
in Python. It takes the same resolved way, under the same strict rules.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, BinaryIO

from deployer.push.pace import Throttled
from deployer.transport.base import Result, Transport
from deployer.transport.faults import LineBroken

BROKEN = 255  # ssh's own exit code: everything else is the command's
LOOK = 0.25  # seconds between two looks at how far it is
CHUNK = 1 << 16


@dataclass(frozen=True)
class Way:
    """How files go to a host, in words, too."""

    by_ssh: bool
    why: str


def way(transport: Transport) -> Way:
    """This machine's ssh, whichever system it is, else the connection that is open already. Both continue."""
    if transport.openssh is None:
        return Way(False, "copied on this machine")
    if not shutil.which("ssh"):
        return Way(False, "over the open connection: this machine has no ssh program")
    said = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False, timeout=30)
    return Way(True, f"by {(said.stderr + said.stdout).split(',')[0].split(' ')[0].strip().replace('_', ' ')}")


def feed(
    transport: Transport,
    command: str,
    source: BinaryIO,
    *,
    sudo: bool,
    limit: float | None,
    stall: float,
    at: Callable[[int], None],
) -> Result:
    """Runs `command`, as root with `sudo`, with the rest of the file `source` as its stdin, at `limit` MB/s at most; calls
    `at` with the position in the file.

    Raises LineBroken when the connection breaks or nothing moves for `stall` seconds.
    """
    assert transport.openssh is not None
    prefix = "sudo -n " if sudo else ""
    words = [*ending_with_us(), *transport.openssh, f"{prefix}/bin/sh -c {shlex.quote(command)}"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # Its own process group: Ctrl-C reaches us first, and we end it with its children.
        with subprocess.Popen(
            words,
            stdin=subprocess.PIPE if limit else source,
            stdout=out,
            stderr=err,
            start_new_session=True,
        ) as process:
            try:
                if process.stdin:
                    slow = Throttled(source, limit * 1e6) if limit else source
                    threading.Thread(target=_copy, args=(slow, process.stdin), daemon=True).start()
                _watched(process, source, stall, at, transport.name)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
        printed, said = _text(out), _text(err)
    if process.returncode == BROKEN or process.returncode < 0:
        what = f"the connection broke: {said.strip()[-400:] or 'ssh ended'}"
        raise LineBroken(what, where=transport.name, remedy="run the same command again: what arrived is kept")
    return Result(command, process.returncode, printed, said)


def lent(transport: Transport, path: str) -> bool:
    """Makes `path` a file that the account we log in with may write, until it is published. Between sshd and a file of
    root's there would be sudo, which copies every byte once more. False when the account cannot reach it there.
    """
    give = 'umask 022; : >>"$0" && chown "$1" "$0"'
    quoted, account = shlex.quote(path), "$(id -u)"
    given = f"sudo -n /bin/sh -c {shlex.quote(give)} {quoted} {account} && test -w {quoted}"
    return transport.run(f"test {account} = 0 || {{ {given}; }}", check=False).ok


def ending_with_us() -> list[str]:
    """Words before a command that end it when this program is killed, where the system can do that. Elsewhere it
    finishes its file, which harms nothing.
    """
    return ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _copy(source: Throttled | BinaryIO, sink: IO[bytes]) -> None:
    with suppress(OSError, ValueError):  # ssh has ended, and says itself why
        while block := source.read(CHUNK):
            sink.write(block)
            sink.flush()
    with suppress(OSError, ValueError):
        sink.close()


def _watched(
    process: subprocess.Popen[bytes], source: BinaryIO, stall: float, at: Callable[[int], None], name: str
) -> None:
    """Until it has ended. Without a limit ssh reads the file itself: the open file's position is common to both."""
    position, moved = -1, time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK)
        now = os.lseek(source.fileno(), 0, os.SEEK_CUR)
        if now != position:
            position, moved = now, time.monotonic()
            at(position)
        if process.returncode is not None:
            return
        if time.monotonic() - moved > stall:
            raise LineBroken(f"stalled, nothing moved for {stall:g} s", where=name, remedy="run the same command again")
