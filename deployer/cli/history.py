"""history: who changed what on a host, and how it ended."""

from __future__ import annotations

from typing import Annotated

import typer

from deployer.cli.display import out
from deployer.cli.host import HostName, reached
from deployer.cli.report import report
from deployer.plan import audit
from deployer.plan.audit import Entry

Count = Annotated[int, typer.Option("--lines", "-n", min=1, help="how many of the last changes")]


def history(host: HostName, lines: Count = 20) -> None:
    """Shows the host's audit log: who changed what, when, and how it ended; the newest last.

    Examples:
        ddtree-deploy history ct129 --lines 5
    """
    with reached(host) as reached_host:
        report.history = list(audit.read(reached_host.transport, reached_host.layout, lines))
    for entry in report.history:
        out.print(_described(entry), markup=False)
    if not report.history:
        out.print("nothing was changed here")


def _described(entry: Entry) -> str:
    steps = "".join(f"\n    {step}" for step in entry.steps)
    because = f" (because: {entry.reason})" if entry.reason else ""
    return f"{entry.when}  {entry.who}  {entry.verb}: {entry.outcome}{because}{steps}"
