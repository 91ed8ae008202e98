"""tune: how many tokens to verify at which batch size, measured on the host; or that a tree does not pay there."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deployer.cli.bench import Concurrency, Html, OneLoad, Out, Sets, TakeGpu, Temperature
from deployer.cli.display import out
from deployer.cli.host import Host, HostName, PlanOnly, reached
from deployer.cli.report import report
from deployer.cli.results import to_be_written, write
from deployer.cli.up import Stage, climb, foresee
from deployer.errors import UndecidedError
from deployer.inventory.load import TUNED, find, load

if TYPE_CHECKING:
    from deployer.inventory.model import Inventory
    from deployer.tune.found import Tune

Arms = Annotated[
    str | None, typer.Option("--arms", metavar="A,B", help="what to choose from: ar, and some of chain:K and tree:B")
]
Rounds = Annotated[
    int, typer.Option("--rounds", min=1, help="how often all is measured, before the choice and again after it")
]
File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="where the answer goes, {host} is the host's name; NAME.tuned.toml beside the inventory if left out",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="replace a file that says otherwise, and keep it as FILE.before")
]


def tune(
    host: HostName,
    arms: Arms = None,
    sets: Sets = None,
    concurrency: Concurrency = None,
    temperature: Temperature = None,
    rounds: Rounds = 3,
    one_load: OneLoad = False,
    take_gpu: TakeGpu = False,
    file: File = None,
    overwrite: Overwrite = False,
    results: Out = None,
    html: Html = None,
    plan: PlanOnly = False,
) -> None:
    """Measures chains and trees at every number of requests, chooses the tokens to verify by batch size, confirms the
    choice beside plain decoding and the best chain in new rounds, and writes it to a file that serve reads.

    Where a chain or plain decoding is faster, that is what it chooses, and says so. It measures as bench does: nothing
    twice, the service only with --take-gpu, and a run that was cut goes on.

    Examples:
        ddtree-deploy tune ct129 --take-gpu --plan
        ddtree-deploy tune ct129 --take-gpu --html tune.html
    """
    from deployer.bench.sweep import sweep_of
    from deployer.serve import sound
    from deployer.tune.found import Tune
    from deployer.tune.plan import usual_arms, usual_concurrency

    inventory = load(host)
    to_be_written(inventory.name, results, html)
    sweep = sweep_of(
        inventory,
        arms=arms or ",".join(usual_arms(inventory)),
        sets=sets,
        concurrency=concurrency or ",".join(map(str, usual_concurrency(inventory))),
        temperature=temperature,
        rounds=rounds,
        one_load=one_load,
    )
    asked = Tune(sweep, _file(file, inventory, find(host)), overwrite)
    with reached(host, sound.engine) as reached_host:
        if plan:
            foresee(reached_host, _stages(asked, take_gpu))
            _show(reached_host, asked, None, None)
            return
        climb(reached_host, _stages(asked, take_gpu), "tune")
        _show(reached_host, asked, results, html)


def _stages(asked: Tune, take_gpu: bool) -> list[Stage]:
    from deployer.tune.plan import confirming, measuring, writing

    return [
        ("measure", partial(measuring, asked, take_gpu=take_gpu)),
        ("confirm", partial(confirming, asked, take_gpu=take_gpu)),
        ("write", partial(writing, asked)),
    ]


def _show(host: Host, asked: Tune, results: Path | None, html: Path | None) -> None:
    from deployer.bench.page import page
    from deployer.tune.found import found

    try:
        seen = found(asked, host.inventory, host.transport)
    except UndecidedError:  # --plan, before everything was measured
        return
    report.tune, report.sweep = seen.tuning, seen.file
    out.print(seen.text(), markup=False)
    if results is not None:
        write(results, seen.file.model_dump_json(indent=1) + "\n", host.inventory.name)
    if html is not None:
        write(html, page(seen.file), host.inventory.name)


def _file(named: Path | None, inventory: Inventory, path: Path) -> Path:
    """The one on the command line, else the one that the inventory names, else the usual one beside it."""
    if named is not None:
        return Path(str(named).replace("{host}", inventory.name)).resolve()
    return inventory.tree.tuned or path.with_name(f"{path.stem}{TUNED}")
