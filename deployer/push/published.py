"""Where the service finds its models: immutable folders, so that an older configuration still finds the older
drafter.
"""

from __future__ import annotations

import shlex

from deployer.errors import PreflightError
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.push import model
from deployer.transport.base import Transport


def drafter_dir(inventory: Inventory, transport: Transport) -> str:
    """The drafter's folder on the host: that of the laptop's checkpoint if it is there, else what was pushed last.

    Raises PreflightError when it was not pushed, or the laptop's checkpoint is another since.
    """
    layout = Layout.of(inventory)
    file = inventory.drafter.file
    if file.is_file():
        return _present(transport, model.drafter(inventory).folder(layout), str(file))
    return _linked(transport, f"{layout.models}/{model.drafter_slug(inventory)}", str(file))


def target_dir(inventory: Inventory, transport: Transport) -> str:
    """The target's folder on the host: the inventory's path, or the folder behind it when the target is pushed."""
    folder = inventory.target.push
    if folder is None:
        return inventory.target.path
    pushed = model.target(inventory) if folder.is_dir() else None
    if pushed is None:
        return _linked(transport, inventory.target.path, str(folder))
    return _present(transport, pushed.folder(Layout.of(inventory)), str(folder))


def _present(transport: Transport, folder: str, source: str) -> str:
    if transport.run(f"test -d {shlex.quote(folder)}", sudo=True, check=False).ok:
        return folder
    raise PreflightError(
        f"{source} as it is now is not on the host",
        where=f"{transport.name}:{folder}",
        remedy="ddtree-deploy push first",
    )


def _linked(transport: Transport, link: str, source: str) -> str:
    found = transport.run(f"readlink -e {shlex.quote(link)}", sudo=True, check=False).stdout.strip()
    if not found:
        raise PreflightError(
            f"no model: neither {source} here nor {link} there", where=transport.name, remedy="push it"
        )
    return found
