"""What can go wrong, as the operator meets it: one sentence of what, where, and what to do, and an exit code."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `ddtree-deploy`; stable, scripts rely on them. docs/exit-codes.md is this table for people."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    PREFLIGHT = 3
    TRANSFER = 4
    INSTALL = 5
    GATE_FAILED = 6
    ROLLBACK_FAILED = 7
    LOCKED = 8
    BENCH_REGRESSION = 9
    INTERRUPTED = 130

    @property
    def label(self) -> str:
        """How JSON, audit log and notifications call it."""
        return self.name.lower().replace("_", "-")


MEANINGS = {
    Exit.OK: "done, or nothing to do",
    Exit.UNEXPECTED: "a bug in this program: the traceback says where; the host's lock was released",
    Exit.USAGE: "the command line or an inventory asks for something that does not exist; no host was changed",
    Exit.PREFLIGHT: "the host is not fit for what was asked, or a command on it failed; what served serves on",
    Exit.TRANSFER: "bytes or answers did not arrive; what did arrive is kept, the same command goes on from there",
    Exit.INSTALL: "the new release could not be made ready; `current` is as it was",
    Exit.GATE_FAILED: "the new service did not prove itself; what ran before was restored",
    Exit.ROLLBACK_FAILED: "neither the new service nor the one before it serves: a person is needed",
    Exit.LOCKED: "somebody else is deploying to this host, or has done so since this was planned",
    Exit.BENCH_REGRESSION: "a bench got worse by more than its noise, or the tree accepts less than the chain it contains",
    Exit.INTERRUPTED: "Ctrl-C, SIGTERM, SIGHUP, or a reader that went away; the lock was released, the same command goes on",
}

# What a person has to look at first comes first; a code of several hosts is the first of theirs in this order.
SEVERITY = (
    Exit.ROLLBACK_FAILED,
    Exit.GATE_FAILED,
    Exit.UNEXPECTED,
    Exit.INTERRUPTED,
    Exit.INSTALL,
    Exit.TRANSFER,
    Exit.BENCH_REGRESSION,
    Exit.PREFLIGHT,
    Exit.LOCKED,
    Exit.USAGE,
    Exit.OK,
)


def worst(codes: Iterable[Exit]) -> Exit:
    """The code that speaks for several hosts; OK for none."""
    return min(codes, key=SEVERITY.index, default=Exit.OK)


class DeployError(Exception):
    """An error meant for the operator's eyes: never shown as a traceback.

    `what` is one sentence; `where` names host, file or option; `remedy` says what to do next.
    """

    exit_code = Exit.PREFLIGHT

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.remedy = what, where, remedy

    def __str__(self) -> str:
        where = f"\n  where: {self.where}" if self.where else ""
        remedy = f"\n  do: {self.remedy}" if self.remedy else ""
        return self.what + where + remedy


class UsageError(DeployError):
    """The command line or the inventory asks for something that does not exist."""

    exit_code = Exit.USAGE


class PreflightError(DeployError):
    """The host is not fit for what was asked; nothing was changed."""


class UndecidedError(PreflightError):
    """What is to be done follows from what was not done yet."""


class TransferError(DeployError):
    """Bytes did not arrive; what did arrive is kept as .part and resumed."""

    exit_code = Exit.TRANSFER


class InstallError(DeployError):
    """The new release could not be made ready; `current` is as it was."""

    exit_code = Exit.INSTALL


class GateError(DeployError):
    """The new service did not prove itself; what ran before was restored."""

    exit_code = Exit.GATE_FAILED


class RollbackError(DeployError):
    """Neither the new service nor the one before it serves: a person is needed."""

    exit_code = Exit.ROLLBACK_FAILED


class LockedError(DeployError):
    """Somebody else is deploying to this host."""

    exit_code = Exit.LOCKED
