"""ddtree-deploy: the command line.

Errors of the operator's world become sentences and exit codes here, and only here.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

from deployer import __version__
from deployer.cli import bench, check, doctor, inventory, lock, look, push, serve, up
from deployer.cli import install as install_verb
from deployer.cli.display import err
from deployer.cli.host import choices
from deployer.errors import DeployError, Exit

app = typer.Typer(
    name="ddtree-deploy",
    help="Deploys a DFlash drafter with tree speculation on vLLM, over SSH: checked, resumable, reversible.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables, and so secrets
    add_completion=False,
)
for verb in (
    check.check,
    doctor.doctor,
    push.push,
    install_verb.install,
    bench.bench,
    serve.serve,
    up.up,
    look.status,
    look.logs,
    look.tunnel,
    look.smoke,
    serve.stop,
    serve.rollback,
    serve.uninstall,
    lock.lock,
):
    app.command()(verb)
app.add_typer(inventory.app, name="inventory")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ddtree-deploy {__version__}")
        raise typer.Exit


@app.callback()
def _before(
    local: Annotated[bool, typer.Option("--local", help="take this machine in place of the host: no SSH")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print it and end")
    ] = False,
) -> None:
    choices.local = local


def main() -> None:
    """The console script. SIGTERM and SIGHUP end like Ctrl-C, so that locks are released."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)
    try:
        app()
    except DeployError as error:
        err.print(f"error: {error}", markup=False, style="red", soft_wrap=True)
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        sys.exit(int(Exit.INTERRUPTED))


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
