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
    """The drafter's folder on the host: from the laptop's checkpoint if it is there, else what was pushed last."""
    layout = Layout.of(inventory)
    if inventory.drafter.file.is_file():
        return model.drafter(inventory).folder(layout)
    return _pushed(transport, f"{layout.models}/{model.drafter_slug(inventory)}", str(inventory.drafter.file))


def target_dir(inventory: Inventory, transport: Transport) -> str:
    """The target's folder on the host: the inventory's path, or the folder behind it when the target is pushed."""
    folder = inventory.target.push
    if folder is None:
        return inventory.target.path
    pushed = model.target(inventory) if folder.is_dir() else None
    return pushed.folder(Layout.of(inventory)) if pushed else _pushed(transport, inventory.target.path, str(folder))


def _pushed(transport: Transport, link: str, source: str) -> str:
    found = transport.run(f"readlink -e {shlex.quote(link)}", sudo=True, check=False).stdout.strip()
    if not found:
        raise PreflightError(
            f"no model: neither {source} here nor {link} there", where=transport.name, remedy="push it"
        )
    return found
