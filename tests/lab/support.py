"""What the lab's own tests ask of it with."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from .box import Lab

Ran = subprocess.CompletedProcess[str]


def run(argv: list[str], stdin: bytes = b"", timeout: float = 60) -> Ran:
    done = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout, check=False)
    return Ran(argv, done.returncode, done.stdout.decode(), done.stderr.decode())


def ssh(lab: Lab, host: str, *command: str, stdin: bytes = b"") -> Ran:
    return run(lab.ssh(host, *command), stdin)


def attach(lab: Lab, host: str, *argv: str) -> Ran:
    return run(lab.attach(host, *argv))


def wait_for(what: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.1)
