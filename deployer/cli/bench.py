"""bench: plain decoding, the target's own head, DFlash chains and trees on the host; and what its results say."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from deployer.cli import verb
from deployer.cli.display import out, show_line
from deployer.cli.host import Host, HostName, PlanOnly, carry_out, reached
from deployer.cli.report import report
from deployer.cli.results import to_be_written, write
from deployer.plan.step import Plan

if TYPE_CHECKING:
    from deployer.bench.sweep import Sweep
    from deployer.inventory.model import Inventory
    from deployer.transport.base import Transport

TakeGpu = Annotated[bool, typer.Option("--take-gpu", help="stop the service for the bench and start it again after")]
Arms = Annotated[
    str | None,
    typer.Option("--arms", metavar="A,B", help="ar, mtp[:K], chain[:K], tree[:B]; each once or with several numbers"),
]
Sets = Annotated[
    str | None,
    typer.Option(
        "--sets", metavar="A,B", help="mixed, code, maths, chat, extraction, long, FILE.jsonl, vllm:NAME[,option=value]"
    ),
]
Concurrency = Annotated[str | None, typer.Option("--concurrency", metavar="N,N", help="requests at a time: 1,2,4,8")]
Temperature = Annotated[
    str | None, typer.Option("--temperature", metavar="T,T", help="numbers, or own: the model's sampling defaults")
]
Rounds = Annotated[int | None, typer.Option("--rounds", min=1, help="how often everything is measured: 3 show noise")]
OneLoad = Annotated[
    bool, typer.Option("--one-load", help="load each arm once: quicker, but its rounds do not take turns with others'")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="write the results there, as JSON; {host} is the host's name"),
]

Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="write one page with plots there; it needs no network")
]
Results = Annotated[Path, typer.Argument(metavar="FILE", help="what `bench --out` wrote")]
Old = Annotated[Path, typer.Argument(metavar="OLD", help="what `bench --out` wrote before")]
New = Annotated[Path, typer.Argument(metavar="NEW", help="what it wrote now")]
Markdown = Annotated[bool, typer.Option("--markdown", help="as Markdown, for a pull request")]
Tolerance = Annotated[
    float, typer.Option("--tolerance", min=0, max=1, help="changes below this share are none, whatever the noise")
]


class Group(TyperGroup):
    """`bench HOST` is `bench run HOST`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = (*self.commands, *self.get_help_option_names(ctx))
        return super().parse_args(ctx, args if args and args[0] in known else ["run", *args])


app = typer.Typer(cls=Group, help="Measures ways to decode; `bench HOST` is `bench run HOST`.")


def run(
    host: HostName,
    arms: Arms = None,
    sets: Sets = None,
    concurrency: Concurrency = None,
    temperature: Temperature = None,
    rounds: Rounds = None,
    one_load: OneLoad = False,
    take_gpu: TakeGpu = False,
    file: Out = None,
    html: Html = None,
    plan: PlanOnly = False,
) -> None:
    """Measures the arms under every combination of prompts, temperature and concurrency, round by round.

    What was measured with the same release, configuration and prompts is kept and not repeated: a sweep that was cut
    goes on from there. An engine is loaded for each arm of each round, on GPUs for minutes each; --plan says how often.

    Examples:
        ddtree-deploy bench ct129 --plan
        ddtree-deploy bench ct129 --rounds 3 --concurrency 1,2,4,8 --out now.json
    """
    from deployer.bench.sweep import sweep_of
    from deployer.inventory.load import load
    from deployer.serve import sound

    inventory = load(host)
    to_be_written(inventory.name, file, html)
    sweep = sweep_of(
        inventory,
        arms=arms,
        sets=sets,
        concurrency=concurrency,
        temperature=temperature,
        rounds=rounds,
        one_load=one_load,
    )
    judge = sound.engine if sweep.arms else sound.service  # the usual arms have what is served among them
    build = partial(planned, take_gpu=take_gpu, sweep=sweep, mtp=True)
    carry_out(host, "bench", build, plan_only=plan, sound=judge)
    if not plan:
        with reached(host) as reached_host:
            show_bench(reached_host, sweep, mtp=True, file=file, html=html)


def planned(
    inventory: Inventory, transport: Transport, *, take_gpu: bool, sweep: Sweep | None = None, mtp: bool = False
) -> Plan:
    """The bench's plan. What takes the GPUs from the service takes the box out of its routers meanwhile."""
    from deployer.bench.absence import announced
    from deployer.bench.plan import plan

    made = plan(inventory, transport, take_gpu=take_gpu, sweep=sweep, mtp=mtp)
    return announced(made, inventory, transport)


def show_bench(
    host: Host, sweep: Sweep | None = None, *, mtp: bool = False, file: Path | None = None, html: Path | None = None
) -> None:
    """What was measured with what is installed."""
    from deployer.bench.page import page
    from deployer.bench.report import results

    found = results(host.inventory, host.transport, sweep, mtp=mtp)
    if found is None:
        out.print("no bench has run here", markup=False)
        return
    report.bench, report.sweep = found.arms, found.file
    out.print(found.text(), markup=False)
    if file is not None:
        write(file, found.file.model_dump_json(indent=1) + "\n", host.inventory.name)
    if html is not None:
        write(html, page(found.file), host.inventory.name)


def show(results: Results, html: Html = None) -> None:
    """Reads results again: the table, and the page if it is asked for.

    Examples:
        ddtree-deploy bench show now.json --html now.html
    """
    from deployer.bench.model import read
    from deployer.bench.page import page
    from deployer.bench.table import table

    report.sweep = read(results)
    out.print(table(report.sweep), markup=False)
    if html is not None:
        write(html, page(report.sweep), report.sweep.subject.host)


def compare(old: Old, new: New, markdown: Markdown = False, tolerance: Tolerance = 0.03) -> None:
    """Judges NEW beside OLD with the noise in mind; exit code 9 when something got worse by more than it.

    Examples:
        ddtree-deploy bench compare before.json now.json --markdown
    """
    from deployer.bench import comparison
    from deployer.bench.compare import compare as compared
    from deployer.bench.model import read
    from deployer.bench.result import BenchRegression

    found = compared(read(old), read(new), tolerance=tolerance)
    for line in comparison.markdown(found).splitlines() if markdown else comparison.lines(found):
        show_line(line)
    if found.of("worse"):
        raise BenchRegression(
            comparison.summary(found), where=str(new), remedy="bench both again in one session before believing it"
        )


verb.add(app, run, prefix="bench", title="bench")
verb.add(app, show, prefix="bench")
verb.add(app, compare, prefix="bench")
