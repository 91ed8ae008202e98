"""A box leaves its routers before its service stops for good (`stop`, `uninstall`) or for a while (`bench --take-gpu`).

Whoever stops a service means it: a router that cannot be told is named, and keeps nobody from stopping. It notices by
itself, and asks another box.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from deployer.errors import DeployError, UsageError
from deployer.fleet.traffic import Traffic, behind
from deployer.inventory.model import Inventory
from deployer.plan.step import Progress, Step
from deployer.serve import gate
from deployer.serve.decoding import Decoding
from deployer.serve.gate import Wanted
from deployer.serve.service import Service

Action = Callable[[Progress], None]


def steps(verb: str, inventory: Inventory, service: Service) -> tuple[Step, ...]:
    """The step before the service stops; none where nobody is in front of it."""
    try:
        traffic = behind(inventory, strict=False)
    except UsageError as error:
        return (Step(verb, "router", f"no router is told: {error.what}"),)
    if not traffic.routers:
        return ()
    why = f"{', '.join(traffic.routers)} must send nothing here before the service stops"
    return (Step(verb, "router", why, partial(traffic.leave, service)),)


def lent(step: Step, inventory: Inventory, service: Service) -> Step:
    """The same for a step that stops the service and starts it again: requests come again when it answers."""
    before = steps(step.verb, inventory, service)
    if not before or step.action is None:
        return step
    said = replace(step, reason=f"{step.reason}; {before[0].reason}")
    if before[0].action is None:
        return said
    # That it answers is enough: it proved itself when it was deployed.
    wanted = replace(Wanted.of(inventory, Decoding("autoregressive", 0)), expect=None, min_acceptance_length=1.0)
    away = Away(before[0].action, step.action, behind(inventory, strict=False), service, wanted)
    return replace(said, action=away)


@dataclass(frozen=True)
class Away:
    """`action`, while no router sends anything here."""

    leave: Action
    action: Action
    traffic: Traffic
    service: Service
    wanted: Wanted

    def __call__(self, progress: Progress) -> None:
        self.leave(progress)
        try:
            self.action(progress)
        except DeployError:
            self._back(progress)
            raise
        except BaseException:
            progress.say(f"requests come again by: ddtree-deploy up {self.service.transport.name}")
            raise
        self._back(progress)

    def _back(self, progress: Progress) -> None:
        try:
            gate.prove(self.service, self.wanted, progress.say)
            self.traffic.resume(progress)
        except DeployError as error:
            host = self.service.transport.name
            progress.say(f"no requests come yet: {error.what}; when it serves: ddtree-deploy up {host}")
