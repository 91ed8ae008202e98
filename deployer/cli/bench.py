"""bench: autoregressive, DFlash chain and tree on the host."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from deployer.cli.display import out
from deployer.cli.host import Host, HostName, PlanOnly, carry_out, reached
from deployer.cli.report import report

TakeGpu = Annotated[bool, typer.Option("--take-gpu", help="stop the service for the bench and start it again after")]


def bench(host: HostName, take_gpu: TakeGpu = False, plan: PlanOnly = False) -> None:
    """Measures acceptance and TPOT of plain decoding, the DFlash chain and the tree, one after the other."""
    from deployer.bench.plan import plan as build

    carry_out(host, "bench", partial(build, take_gpu=take_gpu), plan_only=plan)
    if not plan:
        with reached(host) as reached_host:
            show_bench(reached_host)


def show_bench(host: Host) -> None:
    """The arms that were measured with what is installed."""
    from deployer.bench.report import as_text, results

    report.bench = results(host.inventory, host.transport)
    out.print(as_text(host.inventory, report.bench) if report.bench else "no bench has run here", markup=False)
