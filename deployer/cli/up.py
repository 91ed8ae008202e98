"""up: from a file on the laptop to a proven service, each verb after the other, under one lock."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from deployer.cli.bench import TakeGpu, planned, show_bench
from deployer.cli.check import examine
from deployer.cli.display import PlanDisplay, out, show_plan, show_undecided
from deployer.cli.host import Builder, Host, HostName, PlanOnly, reached
from deployer.cli.push import Limit
from deployer.cli.serve import Replace, Rolling
from deployer.errors import PreflightError, UndecidedError
from deployer.plan.apply import deploying, last_change, run

Stage = tuple[str, Builder]


def up(
    host: HostName,
    replace: Replace = None,
    take_gpu: TakeGpu = False,
    rolling: Rolling = False,
    limit: Limit = None,
    plan: PlanOnly = False,
) -> None:
    """check, push, install, bench, serve and its gate. Run again, it changes nothing and says why.

    Examples:
        ddtree-deploy up ct129 --plan
        ddtree-deploy up --group production --rolling
    """
    from deployer.hub.plan import plan as fetch
    from deployer.install.plan import plan as install
    from deployer.push.plan import plan as push
    from deployer.serve import sound
    from deployer.serve.plan import plan as serve

    stages: list[Stage] = [
        ("push", partial(push, limit=limit)),
        ("install", install),
        ("fetch", fetch),  # by what was installed
        ("bench", partial(planned, take_gpu=take_gpu)),
        ("serve", partial(serve, replace=replace, rolling=rolling)),
    ]
    with reached(host, sound.service) as reached_host:
        examine(reached_host)
        if plan:
            foresee(reached_host, stages)
            return
        changed = climb(reached_host, stages)
        show_bench(reached_host)
        out.print(f"{host} serves{'' if changed else '; nothing was changed'}. Reach it: ddtree-deploy tunnel {host}")


def climb(host: Host, stages: Sequence[Stage], verb: str = "up") -> bool:
    """Applies the stages in order, each planned after the one before it was applied; says whether anything was done.

    The lock is taken at the first step that changes something: a second run takes none.
    """
    done: list[str] | None = None
    with ExitStack() as stack:
        display = stack.enter_context(PlanDisplay())
        seen = last_change(host.transport, host.layout)
        for _, build in stages:
            plan = build(host.inventory, host.transport)
            if plan.pending and done is None:
                done = stack.enter_context(deploying(host.transport, host.layout, verb, host.ended, seen))
            run(plan, display, done)
    return done is not None


def foresee(host: Host, stages: Sequence[Stage]) -> None:
    """Shows what each stage would do now. A later one may not be decidable before an earlier one is applied."""
    undecided = before = ""
    for verb, build in stages:
        try:
            plan = build(host.inventory, host.transport)
        except PreflightError as error:
            if not undecided and not isinstance(error, UndecidedError):
                raise
            undecided = undecided or before  # which would leave something out
            show_undecided(verb, undecided, error.what)
            continue
        show_plan(plan)
        before = verb
        undecided = verb if plan.pending and not undecided else undecided
