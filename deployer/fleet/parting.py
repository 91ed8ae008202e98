"""A box leaves its routers before its service stops for good (`stop`, `uninstall`) or for a while (`bench --take-gpu`).

Whoever stops a service means it: a router that cannot be told is named, and keeps nobody from stopping. It notices by
itself, and asks another box.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from deployer.errors import DeployError, GateError, RollbackError, UsageError
from deployer.fleet.traffic import UNROUTED, Traffic, behind
from deployer.inventory.model import Inventory
from deployer.plan.signals import held_back
from deployer.plan.step import Progress, Step
from deployer.serve import gate
from deployer.serve.decoding import Decoding
from deployer.serve.gate import Wanted
from deployer.serve.service import Service

Action = Callable[[Progress], None]


def ended(step: Step, inventory: Inventory, service: Service) -> Step:
    """A step that stops the service for good, with its routers told before; as it was where nobody is in front."""
    said, traffic = _told(step, inventory)
    return replace(said, action=Gone(said.action, traffic, service)) if said.action and traffic.routers else said


def lent(step: Step, inventory: Inventory, service: Service) -> Step:
    """The same for one that stops the service and starts it again: requests come again when it answers."""
    said, traffic = _told(step, inventory)
    if said.action is None or not traffic.routers:
        return said
    # That it answers is enough: it proved itself when it was deployed.
    wanted = replace(Wanted.of(inventory, Decoding("autoregressive", 0)), expect=None, min_acceptance_length=1.0)
    return replace(said, action=Away(said.action, traffic, service, wanted))


def _told(step: Step, inventory: Inventory) -> tuple[Step, Traffic]:
    """The step with a reason that names the routers, and who tells them; nobody does if their files cannot be read."""
    if step.action is None:
        return step, UNROUTED
    try:
        traffic = behind(inventory, strict=False)
    except UsageError as error:
        return replace(step, reason=f"{step.reason}; no router is told: {error.what}"), UNROUTED
    if not traffic.routers:
        return step, UNROUTED
    first = f"{', '.join(traffic.routers)} must send nothing here before the service stops"
    return replace(step, reason=f"{step.reason}; {first}"), traffic


@dataclass(frozen=True)
class Gone:
    """`action` ends the service, after no router sends anything here. However it is cut: while the service still runs,
    requests come again.
    """

    action: Action
    traffic: Traffic
    service: Service

    def __call__(self, progress: Progress) -> None:
        self.traffic.leave(self.service, progress)
        try:
            self.action(progress)
        except BaseException:
            with held_back():
                self._back_if_it_runs(progress)
            raise

    def _back_if_it_runs(self, progress: Progress) -> None:
        """What it cannot do is said: what ended the stop is the error."""
        host, why = self.service.transport.name, "the service does not run"
        try:
            if self.service.state().running:
                self.traffic.resume(progress)
                return
        except DeployError as error:
            why = error.what
        progress.say(f"no requests come here: {why}; they come again by: ddtree-deploy up {host}")


@dataclass(frozen=True)
class Away:
    """`action`, while no router sends anything here."""

    action: Action
    traffic: Traffic
    service: Service
    wanted: Wanted

    def __call__(self, progress: Progress) -> None:
        self.traffic.leave(self.service, progress)
        try:
            self.action(progress)
        except DeployError as error:
            try:
                self._back(progress)
            except RollbackError as second:
                what = f"{error.what}; and {second.what}"
                raise RollbackError(what, where=second.where, remedy=second.remedy) from error
            except DeployError as second:
                progress.say(second.what)
            raise
        except BaseException:
            progress.say(f"requests come again by: {self._up}")
            raise
        self._back(progress)

    def _back(self, progress: Progress) -> None:
        """Raises RollbackError when the service does not answer, and what a router says that does not send here."""
        try:
            gate.prove(self.service, self.wanted, progress.say)
            self.traffic.resume(progress)
        except GateError as error:
            raise RollbackError(
                f"the service that was stopped for this does not answer again: {error.what}",
                where=error.where,
                remedy=f"{error.remedy}; what was done is kept, and no router sends here until: {self._up}",
            ) from error
        except DeployError:
            progress.say(f"what was done is kept; no requests come yet, when it serves they come by: {self._up}")
            raise

    @property
    def _up(self) -> str:
        return f"ddtree-deploy up {self.service.transport.name}"
