"""A line that breaks is tried again, from where it broke, as long as something arrives in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type

from deployer.errors import TransferError
from deployer.plan.step import Progress
from deployer.push.failure import WriteError
from deployer.transport.base import Transport
from deployer.transport.faults import LineBroken

T = TypeVar("T")


@dataclass
class Patience:
    """When to give up: after so many attempts in a row that brought nothing. About a minute, so that a host may
    restart meanwhile. A line that breaks again and again but carries something in between is not given up.
    """

    attempts: int = 8
    longest: float = 16.0  # seconds between two attempts
    _best: int = field(default=-1, init=False)
    _fruitless: int = field(default=0, init=False)

    def found(self, offset: int) -> None:
        """An attempt begins, with so many bytes there."""
        if offset > self._best:
            self._best, self._fruitless = offset, 0

    @property
    def begun(self) -> bool:
        return self._best >= 0

    def over(self, _: RetryCallState) -> bool:
        self._fruitless += 1
        return self._fruitless >= self.attempts

    def pause(self, _: RetryCallState) -> float:
        return float(min(self.longest, 0.5 * 2 ** (self._fruitless - 1)))

    def reached(self, action: Callable[[], T]) -> T:
        """What `action` says. A host that was reached before and is not now is restarting, as far as we know."""
        try:
            return action()
        except TransferError as error:
            if isinstance(error, LineBroken | WriteError) or not self.begun:
                raise
            raise LineBroken(error.what, where=error.where, remedy=error.remedy) from error


def attempts(transport: Transport, patience: Patience, progress: Progress) -> Iterator[AbstractContextManager[object]]:
    """For `for attempt in attempts(...): with attempt: ...`: again after each LineBroken, until it went well or `patience`
    is over, which raises the last one. Between two it says what broke, and drops the connection: a stalled one looks
    whole.
    """

    def renew(state: RetryCallState) -> None:
        progress.say(f"{str(state.outcome.exception() if state.outcome else '').splitlines()[0]}; continuing")
        transport.close()

    yield from Retrying(
        retry=retry_if_exception_type(LineBroken),
        stop=patience.over,
        wait=patience.pause,
        before_sleep=renew,
        reraise=True,
    )
