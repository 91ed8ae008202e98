"""inventory: the hosts this laptop knows."""

from __future__ import annotations

import tomli_w
import typer

from deployer.checkpoint import profiles
from deployer.cli.display import out, show_rows
from deployer.cli.host import HostName
from deployer.errors import DeployError
from deployer.inventory.load import find, load, names

app = typer.Typer(help="Lists, shows and validates inventory files.", no_args_is_help=True)


@app.command("list")
def list_hosts() -> None:
    """Every host that a bare name reaches, and its file."""
    show_rows((name, _described(name, str(path))) for name, path in names().items())


@app.command()
def show(host: HostName) -> None:
    """The inventory with all defaults and absolute paths, as TOML."""
    typer.echo(tomli_w.dumps(load(host).model_dump(mode="json", exclude_none=True)), nl=False)


@app.command()
def validate(host: HostName) -> None:
    """Reads the file and the profile it names; says what is wrong with them."""
    inventory = load(host)
    profile = profiles.load(inventory.drafter.profile)
    out.print(f"{find(host)}: valid; drafter profile {profile.name}")


def _described(name: str, path: str) -> str:
    try:
        return f"{path}: {load(name).description}"
    except DeployError as error:
        return f"{path}: invalid ({error.what})"
