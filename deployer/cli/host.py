"""What every verb needs: the host it is about, and how its plan is shown or carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from deployer.cli.display import PlanDisplay, out, show_plan, warn
from deployer.cli.readings import Readings
from deployer.errors import DeployError
from deployer.inventory.load import load, names
from deployer.inventory.model import Inventory
from deployer.plan.apply import apply, last_change
from deployer.plan.audit import Entry
from deployer.plan.layout import Layout
from deployer.plan.notify import notify
from deployer.plan.reading import watched
from deployer.plan.step import Plan
from deployer.transport.base import Transport
from deployer.transport.open import opened


def complete_host(incomplete: str) -> list[str]:
    """Names for the shell; a mistake in a file is no reason to print anything while somebody types."""
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except DeployError:
        return []


def complete_hosts(incomplete: str) -> list[str]:
    """The last name of a list, the others as they are."""
    others, comma, last = incomplete.rpartition(",")
    return [f"{others}{comma}{name}" for name in complete_host(last)]


HostName = Annotated[
    str, typer.Argument(metavar="HOST", help="a name in inventory/, or a .toml file", autocompletion=complete_host)
]
PlanOnly = Annotated[bool, typer.Option("--plan", help="print the steps and their reasons, change nothing")]
Builder = Callable[[Inventory, Transport], Plan]
Judge = Callable[[Inventory], None]
"""Raises UsageError for an inventory with which a verb could not end well, whatever the host is."""


@dataclass
class Choices:
    """What the options before the verb say."""

    local: bool = False


choices = Choices()


@dataclass(frozen=True)
class Host:
    """An inventory and the open transport that belongs to it."""

    inventory: Inventory
    transport: Transport

    @property
    def layout(self) -> Layout:
        return Layout.of(self.inventory)

    def ended(self, entry: Entry) -> None:
        """A change has ended: whoever the inventory names is told."""
        notify(self.inventory.notify, self.inventory.name, entry, warn)


def _as_it_is(_: Inventory) -> None:
    """Refuses nothing: what needs no more of an inventory than that it could be read."""


@contextmanager
def reached(name: str, sound: Judge = _as_it_is) -> Iterator[Host]:
    """Loads the inventory and connects, unless `sound` refuses it."""
    inventory = load(name)
    sound(inventory)
    with watched(Readings()), opened(inventory, local=choices.local) as transport:
        yield Host(inventory, transport)


def carry_out(name: str, verb: str, build: Builder, *, plan_only: bool = False, sound: Judge = _as_it_is) -> None:
    """Builds one verb's plan and shows it, or applies it under the host's lock."""
    with reached(name, sound) as host:
        seen = None if plan_only else last_change(host.transport, host.layout)
        plan = build(host.inventory, host.transport)
        if plan_only:
            show_plan(plan)
            return
        with PlanDisplay() as display:
            apply(plan, host.transport, host.layout, verb=verb, progress=display, ended=host.ended, seen=seen)
        if not plan.pending:
            out.print("nothing to do")
