"""A box leaves its routers before its service stops, and is back among them when it has proved itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from deployer.errors import DeployError, GateError, PreflightError
from deployer.fleet.api import Api, endpoint_of
from deployer.fleet.inventory import Router, address_of, in_front_of
from deployer.inventory.model import Inventory
from deployer.plan.signals import held_back
from deployer.plan.step import Progress
from deployer.serve.gate import Clock
from deployer.serve.metrics import Counters
from deployer.transport.open import opened

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_POLL = 1.0
_QUIET = 2  # times in a row without a request: one may still be on its way from the router
_BACK = 30.0  # seconds until a router that was asked to must send again


class Busy(Protocol):
    """Whose requests are counted; see Service."""

    def counters(self) -> Counters: ...


class Traffic(Protocol):
    """What comes to a service from outside, around its stop and start."""

    @property
    def routers(self) -> tuple[str, ...]:
        """The names of those in front of it."""
        ...

    def hold(self, service: Busy, progress: Progress) -> None:
        """No request comes any more, and none runs. Whatever it raises, requests come as before."""
        ...

    def leave(self, service: Busy, progress: Progress) -> None:
        """As `hold`, for one that stops whatever its routers say: what keeps one from being told is said."""
        ...

    def resume(self, progress: Progress) -> None:
        """Requests come again. Raises PreflightError that says which router does not send."""
        ...

    def absent(self) -> tuple[str, ...]:
        """Routers that answer and were told to send nothing here: a deployment was killed in between."""
        ...


class Unrouted:
    """Nobody is in front of the service: its own drain is all there is."""

    routers: tuple[str, ...] = ()

    def hold(self, service: Busy, progress: Progress) -> None: ...
    def leave(self, service: Busy, progress: Progress) -> None: ...
    def resume(self, progress: Progress) -> None: ...
    def absent(self) -> tuple[str, ...]:
        return ()


UNROUTED = Unrouted()


@dataclass(frozen=True)
class Door:
    """One router in front of a box: how it is reached, and how long it waits for a box's requests (seconds)."""

    name: str
    open: Callable[[], AbstractContextManager[Api]]
    patience: float

    @classmethod
    def of(cls, router: Router) -> Door:
        @contextmanager
        def reach() -> Iterator[Api]:
            with opened(router) as transport:
                yield Api(endpoint_of(router, transport))

        return cls(router.name, reach, router.serve.drain_timeout)


def behind(inventory: Inventory, *, strict: bool) -> Traffic:
    """What is in front of a box. `strict` lets it leave only where another box serves, and only when it is idle."""
    doors = tuple(Door.of(router) for router in in_front_of(inventory))
    return Routed(address_of(inventory), doors, strict) if doors else UNROUTED


@dataclass(frozen=True)
class Routed:
    """A box at `url` behind these doors."""

    url: str
    doors: tuple[Door, ...]
    strict: bool = False
    clock: Clock = field(default_factory=Clock)

    @property
    def routers(self) -> tuple[str, ...]:
        return tuple(door.name for door in self.doors)

    def hold(self, service: Busy, progress: Progress) -> None:
        self._go(service, progress, self._leave)

    def leave(self, service: Busy, progress: Progress) -> None:
        self._go(service, progress, self._leave_if_it_can_be_told)

    def _go(self, service: Busy, progress: Progress, leave: Callable[[Door, Progress], bool]) -> None:
        """Out of the doors, and idle. However it is cut, requests come as before."""
        left: list[Door] = []
        try:
            for door in self.doors:
                if leave(door, progress):
                    left.append(door)
            if left:
                self._until_idle(service, max(door.patience for door in left), progress)
        except BaseException:
            with held_back():
                for door in left:
                    with suppress(DeployError), door.open() as api:
                        api.add(self.url)
            raise

    def resume(self, progress: Progress) -> None:
        for door in self.doors:
            with door.open() as api:
                self._enter(api, door, progress)

    def absent(self) -> tuple[str, ...]:
        return tuple(door.name for door in self.doors if self._left_out(door))

    def _left_out(self, door: Door) -> bool:
        with suppress(DeployError), door.open() as api:
            workers = api.workers()
            return workers is not None and self.url not in [worker.url for worker in workers]
        return False

    def _leave(self, door: Door, progress: Progress) -> bool:
        with door.open() as api:
            workers = api.workers()
            if workers is None:
                progress.say(f"router {door.name} does not answer: nothing comes through it")
                return False
            if self.url not in [worker.url for worker in workers]:
                progress.say(f"router {door.name} does not send here")
                return False
            if not any(worker.healthy for worker in workers if worker.url != self.url):
                self._alone(door, progress)
            api.remove(self.url)
        progress.say(f"router {door.name} sends no more requests here")
        return True

    def _leave_if_it_can_be_told(self, door: Door, progress: Progress) -> bool:
        try:
            return self._leave(door, progress)
        except DeployError as error:
            progress.say(f"router {door.name} could not be told: {error.what}; it notices, and asks another box")
            return False

    def _alone(self, door: Door, progress: Progress) -> None:
        if self.strict:
            raise PreflightError(
                f"router {door.name} has no other healthy box: requests would be refused meanwhile",
                where=self.url,
                remedy="mend the other boxes first (ddtree-deploy router status), or deploy to this one without --rolling",
            )
        progress.say(f"router {door.name} has no other healthy box: it refuses requests until this one serves again")

    def _until_idle(self, service: Busy, patience: float, progress: Progress) -> None:
        deadline, quiet, said = self.clock.now() + patience, 0, -1
        while quiet < _QUIET:
            try:
                counted = service.counters()
            except GateError as error:
                progress.say(f"{error.what}: there is nothing to wait for")
                return
            running = int(counted[RUNNING] + counted[WAITING])
            quiet = 0 if running else quiet + 1
            if running and running != said:
                progress.say(f"{running} requests still run here")
                said = running
            if running and self.clock.now() > deadline:
                self._impatient(running, patience, progress)
                return
            if quiet < _QUIET:
                self.clock.sleep(_POLL)

    def _impatient(self, running: int, patience: float, progress: Progress) -> None:
        what = f"{running} requests still run here after {patience:.0f} s"
        if self.strict:
            raise PreflightError(
                what, where=self.url, remedy="wait for them, or raise the router's [serve] drain_timeout"
            )
        progress.say(f"{what}: they have vLLM's own drain left")

    def _enter(self, api: Api, door: Door, progress: Progress) -> None:
        deadline, asked = self.clock.now() + _BACK, False
        while True:
            workers = api.workers()
            if workers is None:
                progress.say(f"router {door.name} does not answer: it finds this box when it starts")
                return
            if any(worker.healthy for worker in workers if worker.url == self.url):
                progress.say(f"router {door.name} sends requests here")
                return
            if not asked and self.url not in [worker.url for worker in workers]:
                api.add(self.url)
                asked = True
            elif self.clock.now() > deadline:
                raise PreflightError(
                    f"router {door.name} does not send to {self.url}, which has proved itself",
                    where=self.url,
                    remedy="does [serve] allow name the router's address? ddtree-deploy router status says what it sees",
                )
            else:
                self.clock.sleep(_POLL)
