"""inventory: the hosts this laptop knows."""

from __future__ import annotations

import tomli_w
import typer

from deployer.checkpoint import profiles
from deployer.cli import verb
from deployer.cli.display import out, show_rows
from deployer.cli.host import HostName
from deployer.cli.report import report
from deployer.errors import DeployError
from deployer.inventory.load import find, load, names

app = typer.Typer(help="Lists, shows and validates inventory files.", no_args_is_help=True)


def list_hosts() -> None:
    """Every host that a bare name reaches, and its file.

    Examples:
        ddtree-deploy inventory list
    """
    show_rows((name, _described(name, str(path))) for name, path in names().items())


def show(host: HostName) -> None:
    """The inventory with all defaults and absolute paths, as TOML.

    Examples:
        ddtree-deploy inventory show ct129
    """
    report.inventory = load(host).model_dump(mode="json", exclude_none=True)
    out.print(tomli_w.dumps(report.inventory), markup=False, end="")


def validate(host: HostName) -> None:
    """Reads the file and what it names on this machine, and says what serve would refuse of it.

    Secrets are not read: who reviews a file need not have them. check says whether they are there.

    Examples:
        ddtree-deploy inventory validate inventory/ct129.toml
    """
    from deployer.serve import sound

    inventory, path = load(host), find(host)
    profile = profiles.load(inventory.drafter.profile)
    sound.service(inventory, secrets=False)
    report.rows([("file", str(path)), ("drafter profile", profile.name)])
    out.print(f"{path}: valid; drafter profile {profile.name}", markup=False)


def _described(name: str, path: str) -> str:
    try:
        inventory = load(name)
    except DeployError as error:
        return f"{path}: invalid ({error.what})"
    groups = f" [{', '.join(inventory.groups)}]" if inventory.groups else ""
    return f"{path}: {inventory.description}{groups}"


verb.add(app, list_hosts, name="list", prefix="inventory")
verb.add(app, show, prefix="inventory", several=False)
verb.add(app, validate, prefix="inventory", several=False)
