"""What can go wrong, as the operator meets it: one sentence of what, where, and what to do, and an exit code."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `ddtree-deploy`; stable, scripts rely on them."""

    OK = 0
    USAGE = 2
    PREFLIGHT = 3
    TRANSFER = 4
    INSTALL = 5
    GATE_FAILED = 6
    ROLLBACK_FAILED = 7
    LOCKED = 8
    BENCH_REGRESSION = 9
    INTERRUPTED = 130


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
