"""ddtree-deploy: the command line.

Errors of the operator's world become sentences and exit codes here, and only here; with `--json` a document as well.
"""

from __future__ import annotations

import signal
import sys
import traceback
from types import FrameType
from typing import Annotated, NoReturn

import typer

from deployer import __version__
from deployer.cli import bench, check, doctor, gc, history, inventory, lock, look, push, router, serve, tune, up, verb
from deployer.cli import init as init_verb
from deployer.cli import install as install_verb
from deployer.cli.display import begin, err, tell_programs, untold
from deployer.cli.host import choices
from deployer.cli.report import report
from deployer.cli.stream import Unread, lost
from deployer.errors import DeployError, Exit, UsageError

app = typer.Typer(
    name="ddtree-deploy",
    help="Deploys a DFlash drafter with tree speculation on vLLM, over SSH: checked, resumable, reversible.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables, and so secrets
)
for function in (
    check.check,
    doctor.doctor,
    push.push,
    install_verb.install,
    serve.serve,
    up.up,
    tune.tune,
    look.status,
    look.logs,
    look.smoke,
    serve.stop,
    serve.rollback,
    serve.uninstall,
    gc.gc,
    lock.lock,
    history.history,
):
    verb.add(app, function)
verb.add(app, look.tunnel, several=False)
verb.add(app, init_verb.init, several=False)
app.add_typer(bench.app, name="bench")
app.add_typer(inventory.app, name="inventory")
app.add_typer(router.app, name="router")


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


def main() -> NoReturn:
    """The console script. SIGTERM and SIGHUP end like Ctrl-C, so that locks are released."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)
    report.json = "--json" in sys.argv[1:]
    begin(programs=report.json)
    code, error = _ended()
    if report.json and not report.printed and (report.verb or error):
        tell_programs(report.text(code, error))
        code = Exit.USAGE if code is Exit.OK and untold() else code
    sys.exit(int(code))


def _ended() -> tuple[Exit, DeployError | None]:
    """Runs the verb; says how it ended, and why if not well."""
    try:
        returned = app(standalone_mode=False)
    except DeployError as error:
        return _said(error)
    except typer.TyperException as error:
        return Exit.USAGE, _misused(error)
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED, _cut()
    except SystemExit as ended:  # rich and typer make a bare 1 of a pipe that broke: that is a bug's number here
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        return _failed(ended.__context__)
    except Exception as error:
        return _failed(error)
    code = Exit(returned) if isinstance(returned, int) else Exit.OK
    return code, _cut() if code is Exit.INTERRUPTED and not report.fleet else None


def _said(error: DeployError) -> tuple[Exit, DeployError]:
    if not isinstance(error, Unread):
        err.print(f"error: {error}", markup=False, style="red", soft_wrap=True)
    return error.exit_code, error


def _failed(error: Exception) -> tuple[Exit, DeployError]:
    """What no verb makes a sentence of. Before a verb begins, only help and version are printed."""
    return _said(lost("stdout", error)) if isinstance(error, OSError) and not report.verb else _bug(error)


def _bug(error: Exception) -> tuple[Exit, DeployError]:
    traceback.print_exception(error)
    what = f"a bug: {type(error).__name__}"
    return Exit.UNEXPECTED, DeployError(what, where="this program", remedy="report it with the traceback")


def _cut() -> DeployError:
    return DeployError("interrupted", where="this machine", remedy="the same command goes on from there")


def _misused(error: typer.TyperException) -> UsageError:
    """A command line that nobody understands. Without any words it is a wish for help, which was printed."""
    what = error.format_message()
    usage = UsageError(what, where="the command line", remedy="ddtree-deploy --help")
    if what:
        err.print(f"error: {usage}", markup=False, style="red", soft_wrap=True)
    return usage


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
