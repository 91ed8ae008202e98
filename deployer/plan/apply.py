"""Carries out a plan: under the host's lock, step by step, with one line in the host's audit log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from deployer.errors import DeployError, InstallError, LockedError, PreflightError, TransferError
from deployer.plan import audit
from deployer.plan.audit import Entry
from deployer.plan.layout import Layout
from deployer.plan.lock import held
from deployer.plan.signals import held_back
from deployer.plan.step import Plan, Progress, Step
from deployer.transport.base import Transport
from deployer.transport.shell import CommandError

# What a failed command means in the middle of these; elsewhere the host is not fit for what was asked.
FAILURES: dict[str, type[DeployError]] = {"push": TransferError, "install": InstallError}


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


Ended = Callable[[Entry], None]
Seen = tuple[Entry, ...]


def unheard(entry: Entry) -> None:
    """Nobody is told."""


def apply(
    plan: Plan,
    transport: Transport,
    layout: Layout,
    *,
    verb: str,
    progress: PlanProgress,
    ended: Ended = unheard,
    seen: Seen | None = None,
) -> None:
    """Runs the pending steps of `plan` in order. A plan without any takes no lock and leaves no trace.

    `seen` is what the audit log ended with before the plan was made.
    """
    if not plan.pending:
        run(plan, progress)
        return
    with deploying(transport, layout, verb, ended, seen) as done:
        run(plan, progress, done)


def run(plan: Plan, progress: PlanProgress, done: list[str] | None = None) -> None:
    """Runs the steps without lock or log; appends the titles of those that were carried out to `done`."""
    for step in plan.steps:
        if step.action is None:
            progress.unneeded(step)
            continue
        progress.begins(step)
        start = time.monotonic()
        try:
            step.action(progress)
        except CommandError as error:
            raise _failed(step, error.what, error.where, error.remedy) from error
        except OSError as error:
            # Of this machine: a host's own arrive as results of commands.
            where = str(error.filename or "this machine")
            raise _failed(step, error.strerror or str(error), where, "mend that and run the same again") from error
        progress.ends(step, time.monotonic() - start)
        if done is not None:
            done.append(f"{step.verb}: {step.title}")


def _failed(step: Step, what: str, where: str, remedy: str) -> DeployError:
    return FAILURES.get(step.verb, PreflightError)(what, where=where, remedy=remedy)


def last_change(transport: Transport, layout: Layout) -> Seen:
    """What the host's audit log ends with: a plan is made from what the host was like then."""
    return audit.read(transport, layout, 1)


@contextmanager
def deploying(
    transport: Transport, layout: Layout, verb: str, ended: Ended = unheard, seen: Seen | None = None
) -> Iterator[list[str]]:
    """Under the host's lock; however the block is left, the audit log gets its line, and then `ended` is told.

    The yielded list takes the titles of steps done. Whoever finds the host locked leaves no line, nor does one whose
    plan is no longer right: the log has another end than `seen`.
    """
    entries: list[Entry] = []
    try:
        with held(transport, layout, verb):
            _unless_changed(transport, layout, seen)
            with _audited(transport, layout, verb, entries) as done:
                yield done
    finally:
        for entry in entries:
            ended(entry)


def _unless_changed(transport: Transport, layout: Layout, seen: Seen | None) -> None:
    now = last_change(transport, layout) if seen is not None else None
    if now and now != seen:
        raise LockedError(
            f"somebody changed the host while this was planned: {now[-1].who}, {now[-1].verb}, {now[-1].when}",
            where=f"{transport.name}:{layout.audit}",
            remedy="run the same again: it plans from what is there now",
        )


@contextmanager
def _audited(transport: Transport, layout: Layout, verb: str, entries: list[Entry]) -> Iterator[list[str]]:
    done: list[str] = []
    try:
        yield done
    except BaseException as error:
        entries.append(Entry.of(verb, done, error))
        with suppress(DeployError), held_back():  # the connection may be what failed
            audit.write(transport, layout, entries[0])
        raise
    if done:
        entries.append(Entry.of(verb, done))
        with held_back():
            audit.write(transport, layout, entries[0])
