"""status, logs, tunnel, smoke: verbs that look at a service and change nothing."""

from __future__ import annotations

import shlex
import threading
from typing import Annotated

import typer

from deployer.cli.display import PlanDisplay, out, show_line, show_rows, tell_programs
from deployer.cli.host import HostName, reached
from deployer.cli.report import report
from deployer.errors import Exit, UsageError

Lines = Annotated[int, typer.Option("--lines", "-n", min=1, help="how many of the last lines")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="keep printing new ones; Ctrl-C ends it")]
LocalPort = Annotated[int, typer.Option("--port", min=0, max=65535, help="the port here; 0 is any free one")]


def status(host: HostName) -> None:
    """Shows the unit, its release, health, acceptance, throughput, GPU memory, and who changed it last.

    Examples:
        ddtree-deploy status --group production
    """
    from deployer.serve.status import status as rows

    with reached(host) as reached_host:
        show_rows(rows(reached_host.inventory, reached_host.transport))


def logs(host: HostName, lines: Lines = 100, follow: Follow = False) -> None:
    """Prints the service's journal.

    Examples:
        ddtree-deploy logs ct129 --follow
        ddtree-deploy logs ct129 --lines 1000
    """
    if follow and report.json:
        raise UsageError(
            "--follow has no end, and --json is one document at the end",
            where="the command line",
            remedy="leave one of them out",
        )
    report.lines = []
    with reached(host) as reached_host:
        unit = shlex.quote(reached_host.layout.unit)
        command = f"journalctl --no-pager -o short-iso -u {unit} -n {lines}{' -f' if follow else ''}"
        for line in reached_host.transport.stream(command, sudo=True, timeout=86400.0 if follow else 60.0):
            show_line(line)


def tunnel(host: HostName, port: LocalPort = 0) -> None:
    """Opens the service's port here until Ctrl-C: it listens on the host's loopback only.

    Examples:
        ddtree-deploy tunnel ct129 --port 8000
    """
    with reached(host) as reached_host:
        serve = reached_host.inventory.serve
        with reached_host.transport.forward("127.0.0.1", serve.port, port) as here:
            url = f"http://127.0.0.1:{here}/v1"
            report.rows([("url", url), ("model", serve.served_model_name)])
            out.print(f"{url} is {serve.served_model_name} on {host}; Ctrl-C closes it")
            if report.json:  # now: who waits for its end has no use for it
                tell_programs(report.text(Exit.OK))
            threading.Event().wait()


def smoke(host: HostName) -> None:
    """Proves a running service; exit code 0 only if every assertion holds, 6 if one does not. Nothing is changed.

    Examples:
        ddtree-deploy smoke ct129
        ddtree-deploy smoke --on ct129,staging --json
    """
    from deployer.serve.smoke import smoke as prove

    report.lines = []
    with reached(host) as reached_host, PlanDisplay() as display:
        prove(reached_host.inventory, reached_host.transport, display)
