"""serve: the unit, its gate, and the way back."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from deployer.cli.host import HostName, PlanOnly, carry_out

Replace = Annotated[
    str | None,
    typer.Option("--replace", metavar="UNIT", help="stop this unit when all else is ready; restored if the gate fails"),
]
Rolling = Annotated[
    bool,
    typer.Option(
        "--rolling",
        help="one host after another, ending at the first that fails; a box leaves its router only while another serves",
    ),
]


def serve(host: HostName, replace: Replace = None, rolling: Rolling = False, plan: PlanOnly = False) -> None:
    """Installs and starts the unit, and proves it by a real completion; what ran before comes back if that fails.

    Examples:
        ddtree-deploy serve ct129 --plan
        ddtree-deploy serve ct129 --replace old-vllm.service
    """
    from deployer.serve import sound
    from deployer.serve.plan import plan as build

    build_it = partial(build, replace=replace, rolling=rolling)
    carry_out(host, "serve", build_it, plan_only=plan, sound=sound.service)


def stop(host: HostName, plan: PlanOnly = False) -> None:
    """Takes the box out of its routers, stops the service, and leaves everything else.

    Examples:
        ddtree-deploy stop ct129
    """
    from deployer.serve.stop import plan as build

    carry_out(host, "stop", build, plan_only=plan)


def rollback(
    host: HostName,
    to: Annotated[
        str | None, typer.Option("--to", metavar="RELEASE", help="which release; the previous one if left out")
    ] = None,
    rolling: Rolling = False,
    plan: PlanOnly = False,
) -> None:
    """Goes back to what served before, through the same gate.

    Examples:
        ddtree-deploy rollback ct129 --plan
        ddtree-deploy rollback --group production --rolling
    """
    from deployer.serve.rollback import plan as build

    carry_out(host, "rollback", partial(build, to=to, rolling=rolling), plan_only=plan)


def uninstall(
    host: HostName,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="leave the pushed models")] = False,
    plan: PlanOnly = False,
) -> None:
    """Removes service, releases, state and pushed models from the host.

    Examples:
        ddtree-deploy uninstall ct129 --plan
        ddtree-deploy uninstall ct129 --keep-models
    """
    from deployer.serve.uninstall import plan as build

    carry_out(host, "uninstall", partial(build, models=not keep_models), plan_only=plan)
