"""Carries out a plan: under the host's lock, step by step, with one line in the host's audit log."""

from __future__ import annotations

import getpass
import json
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from deployer.errors import DeployError
from deployer.plan.layout import Layout
from deployer.plan.lock import held
from deployer.plan.step import Plan, Progress, Step
from deployer.transport.base import Transport


class PlanProgress(Progress, Protocol):
    """Where a running plan reports to."""

    def unneeded(self, step: Step) -> None:
        """A step that is satisfied already; its reason says why."""
        ...

    def begins(self, step: Step) -> None:
        """A step's action starts; `say` and `bytes` belong to it until it ends."""
        ...

    def ends(self, step: Step, seconds: float) -> None:
        """The step's action is done."""
        ...


@dataclass
class Silent:
    """Discards everything: for scripts and tests."""

    def say(self, line: str) -> None: ...
    def bytes(self, done: int, total: int) -> None: ...
    def unneeded(self, step: Step) -> None: ...
    def begins(self, step: Step) -> None: ...
    def ends(self, step: Step, seconds: float) -> None: ...


def apply(plan: Plan, transport: Transport, layout: Layout, *, verb: str, progress: PlanProgress) -> None:
    """Runs the pending steps of `plan` in order. A plan without any takes no lock and leaves no trace."""
    if not plan.pending:
        run(plan, progress)
        return
    with held(transport, layout, verb), audited(transport, layout, verb) as done:
        run(plan, progress, done)


def run(plan: Plan, progress: PlanProgress, done: list[str] | None = None) -> None:
    """Runs the steps without lock or log; appends the titles of those that were carried out to `done`."""
    for step in plan.steps:
        if step.action is None:
            progress.unneeded(step)
            continue
        progress.begins(step)
        start = time.monotonic()
        step.action(progress)
        progress.ends(step, time.monotonic() - start)
        if done is not None:
            done.append(f"{step.verb}: {step.title}")


@contextmanager
def audited(transport: Transport, layout: Layout, verb: str) -> Iterator[list[str]]:
    """Writes who did what and how it ended, however the block is left;
    the yielded list takes the titles of steps done.
    """
    done: list[str] = []
    try:
        yield done
    except BaseException as error:
        with suppress(DeployError):  # the connection may be what failed
            _write(transport, layout, verb, done, f"{type(error).__name__}: {error}".splitlines()[0])
        raise
    if done:
        _write(transport, layout, verb, done, "ok")


def _write(transport: Transport, layout: Layout, verb: str, done: list[str], outcome: str) -> None:
    """Appends one line; not on a host whose root is gone (after uninstall) or was never made."""
    line = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "who": f"{getpass.getuser()}@{socket.gethostname()}",
        "verb": verb,
        "steps": done,
        "outcome": outcome,
    }
    root, state, audit = (shlex.quote(path) for path in (layout.root, layout.state, layout.audit))
    command = f"test -d {root} || exit 0; mkdir -p {state} && cat >>{audit}"
    transport.run(command, sudo=True, stdin=(json.dumps(line) + "\n").encode())
