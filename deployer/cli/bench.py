"""bench: autoregressive, DFlash chain and tree on the host."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from deployer.cli.display import out
from deployer.cli.host import HostName, PlanOnly, carry_out, reached

TakeGpu = Annotated[bool, typer.Option("--take-gpu", help="stop the service for the bench and start it again after")]


def bench(host: HostName, take_gpu: TakeGpu = False, plan: PlanOnly = False) -> None:
    """Measures acceptance and TPOT of plain decoding, the DFlash chain and the tree, one after the other."""
    from deployer.bench.plan import plan as build

    carry_out(host, "bench", partial(build, take_gpu=take_gpu), plan_only=plan)
    if not plan:
        with reached(host) as reached_host:
            from deployer.bench.report import last

            out.print(last(reached_host.inventory, reached_host.transport) or "no bench has run here")
