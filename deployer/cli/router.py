"""router: vllm-router over the boxes of a group, on a host of its own or beside one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer

from deployer.cli import verb
from deployer.cli.display import PlanDisplay, out, show_plan, show_rows, warn
from deployer.cli.host import PlanOnly
from deployer.errors import DeployError
from deployer.fleet.inventory import Router, load, names
from deployer.plan.apply import apply
from deployer.plan.notify import notify
from deployer.plan.step import Plan
from deployer.transport.base import Transport
from deployer.transport.open import opened

app = typer.Typer(help="vllm-router in front of a group's boxes (inventory/routers/).", no_args_is_help=True)
Builder = Callable[[Router, Transport], Plan]


def complete_router(incomplete: str) -> list[str]:
    """Names for the shell."""
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except DeployError:
        return []


RouterName = Annotated[
    str,
    typer.Argument(
        metavar="ROUTER", help="a name in inventory/routers/, or a .toml file", autocompletion=complete_router
    ),
]


def up(host: RouterName, plan: PlanOnly = False) -> None:
    """Installs vllm-router, starts it over the group's boxes, and waits until it sends to those that are healthy.

    Examples:
        ddtree-deploy router up edge --plan
        ddtree-deploy router up edge
    """
    from deployer.fleet.plan import plan as build

    _carry_out(host, "router up", build, plan_only=plan)


def status(host: RouterName) -> None:
    """Shows the router, and which boxes get requests.

    Examples:
        ddtree-deploy router status edge
    """
    from deployer.fleet.status import status as rows

    with _reached(host) as (router, transport):
        show_rows(rows(router, transport))


def uninstall(host: RouterName, plan: PlanOnly = False) -> None:
    """Removes the router from its host. The boxes serve on.

    Examples:
        ddtree-deploy router uninstall edge --plan
    """
    from deployer.fleet.status import uninstall as build

    _carry_out(host, "router uninstall", build, plan_only=plan)


@contextmanager
def _reached(name: str) -> Iterator[tuple[Router, Transport]]:
    router = load(name)
    with opened(router) as transport:
        yield router, transport


def _carry_out(name: str, title: str, build: Builder, *, plan_only: bool) -> None:
    """Builds a plan and shows it, or applies it under the router's lock."""
    with _reached(name) as (router, transport):
        plan = build(router, transport)
        if plan_only:
            show_plan(plan)
            return
        ended = partial(notify, router.notify, router.name, say=warn)
        with PlanDisplay() as display:
            apply(plan, transport, router.layout, verb=title, progress=display, ended=ended)
        if not plan.pending:
            out.print("nothing to do")


for function in (up, status, uninstall):
    verb.add(app, function, prefix="router", several=False)
