"""init: a new inventory file, by asking."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from pydantic import Field, TypeAdapter, ValidationError

from deployer.checkpoint import profiles
from deployer.cli.display import PlanDisplay, out, show_plan
from deployer.cli.host import PlanOnly
from deployer.cli.report import report
from deployer.errors import UsageError
from deployer.inventory.load import parse
from deployer.inventory.paths import HostPath, SshWord
from deployer.inventory.template import Answers, text
from deployer.plan.apply import run
from deployer.plan.step import Plan, Step

NewName = Annotated[str, typer.Argument(metavar="NAME", help="the new host's name; the file is NAME.toml")]
Folder = Annotated[Path, typer.Option("--folder", help="where the file goes")]
Answer = TypeVar("Answer", str, int)


def init(name: NewName, folder: Folder = Path("inventory"), plan: PlanOnly = False) -> None:
    """Asks what a host is like and writes its commented inventory file; never over an existing one.

    Examples:
        ddtree-deploy init box2
        ddtree-deploy init box2 --folder ~/boxes/inventory
    """
    _of(SshWord, name, "NAME", "letters, digits, dots and dashes; NAME.toml is the file")
    path = (folder.expanduser() / f"{name}.toml").resolve()
    _refuse_existing(path)
    made = text(_asked(name))
    inventory = parse(made, path)
    steps = Plan(
        name, (Step("init", f"write {path}", "there is no such file", lambda progress: write_new(path, made)),)
    )
    if plan:
        show_plan(steps)
        out.print(made, markup=False, end="")
        return
    with PlanDisplay() as display:
        run(steps, display)
    report.rows([("file", str(path))])
    report.inventory = inventory.model_dump(mode="json", exclude_none=True)
    out.print(f"wrote {path}; next: ddtree-deploy check {name}", markup=False)


def _asked(name: str) -> Answers:
    """The questions go to stderr: stdout is for what comes of them. What cannot be is refused when it is answered."""
    build = _ask("Build of vLLM (cuda or cpu)", "cuda", Literal["cuda", "cpu"])
    return Answers(
        name=name,
        host=_ask("SSH host, as in ~/.ssh/config", name, SshWord),
        jump=_ask("Jump host(s), comma-separated; empty for none", "", Literal[""] | SshWord),
        build=build,
        gpus=_number("GPUs", 2, least=0) if build == "cuda" else 0,
        drafter=_here(_ask("Drafter: the .safetensors file on this machine", "drafter.safetensors")),
        profile=_profile(_ask("Profile of the drafter, a name or a .toml file", next(iter(profiles.bundled())))),
        target=_ask("Target: its folder on the host", "/models/target", HostPath),
        target_push=_here(_ask("Folder here to copy the target from; empty if it is on the host", "")),
        model=_ask("Model name that clients ask for", name),
        port=_number("Port on the host's loopback", 8000, least=1, most=65535),
    )


def _here(path: str) -> str:
    """A path as it was typed starts at the current folder, one in an inventory at the inventory's."""
    return str(Path(path).expanduser().absolute()) if path else ""


def _profile(reference: str) -> str:
    return _here(reference) if reference.endswith(".toml") else reference


def _ask(question: str, default: str, kind: Any = str) -> str:
    """An answer that is `kind`, a type that pydantic knows."""
    return _of(kind, _prompted(question, default, str).strip(), question, "run it again")


def _number(question: str, default: int, *, least: int, most: int | None = None) -> int:
    kind = Annotated[int, Field(ge=least, le=most)]
    return _of(kind, _prompted(question, default, int), question, "run it again")


def _prompted(question: str, default: Answer, kind: type[Answer]) -> Answer:
    """Raises UsageError at the end of the input: nobody is there to answer. Ctrl-C is an interrupt all the same."""
    try:
        answer: Answer = typer.prompt(question, default=default, type=kind, show_default=default != "", err=True)
    except typer.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise
        typer.echo(err=True)  # the question's line is still open
        raise UsageError(
            f"no terminal to ask on, and no answer to {question!r}",
            where="stdin",
            remedy="copy inventory/ct129.toml and edit it, or run it in a terminal",
        ) from error
    return answer


def _of(kind: Any, value: Answer, where: str, remedy: str) -> Answer:
    try:
        return TypeAdapter[Answer](kind).validate_python(value)
    except ValidationError as error:
        raise UsageError(f"{value!r} cannot be: {error.errors()[0]['msg']}", where=where, remedy=remedy) from error


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise UsageError("there is such a file already", where=str(path), remedy="edit it, or choose another name")


def write_new(path: Path, made: str) -> None:
    """The whole file or none; UsageError if somebody else has made it meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8") as part:
        part.write(made)
        part.flush()
        os.fsync(part.fileno())
        os.chmod(part.name, 0o644)
        try:
            os.link(part.name, path)  # unlike a rename, it never replaces
        except FileExistsError:
            _refuse_existing(path)
