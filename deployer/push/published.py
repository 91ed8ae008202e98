"""Where the service finds its models: immutable folders, so that an older configuration still finds the older
drafter.
"""

from __future__ import annotations

import shlex

from deployer.errors import PreflightError
from deployer.hub import state
from deployer.hub.request import Request, request
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.push import model
from deployer.transport.base import Transport


def drafter_dir(inventory: Inventory, transport: Transport) -> str:
    """The drafter's folder on the host: what the host fetched; or that of the laptop's checkpoint if it is there, else
    what was pushed last.

    It need not be there yet: whoever uses it looks. Raises PreflightError when neither checkpoint nor link exists, or
    nothing was fetched.
    """
    if asked := request(inventory, "drafter"):
        return _fetched(inventory, transport, asked)
    layout, file = Layout.of(inventory), inventory.drafter.file
    pushed = model.drafter(inventory) if file and file.is_file() else None
    if pushed is None:
        return _linked(transport, f"{layout.models}/{model.drafter_slug(inventory)}", str(file))
    return pushed.folder(layout)


def target_dir(inventory: Inventory, transport: Transport) -> str:
    """The target's folder on the host: the inventory's path, or the folder behind it when the target is pushed, or
    fetched by the host. Raises PreflightError when it is not there yet.
    """
    if asked := request(inventory, "target"):
        return _fetched(inventory, transport, asked)
    folder = inventory.target.push
    if folder is None:
        return inventory.target.path
    pushed = model.target(inventory) if folder.is_dir() else None
    if pushed is None:
        return _linked(transport, inventory.target.path, str(folder))
    return pushed.folder(Layout.of(inventory))


def fingerprint(transport: Transport, folder: str) -> str:
    """Hex digest of what a model folder is known by: the sums of its files where it was pushed; else their names and
    sizes and the contents of its JSON files, for hashing 54 GB would take minutes.
    """
    return transport.run(fingerprint_command(folder), sudo=True).stdout.split()[0]


def fingerprint_command(folder: str) -> str:
    """What prints it."""
    return (
        f"cd {shlex.quote(folder)} && {{ if test -e {model.SUMS}; then cat {model.SUMS}; else "
        "find -L . -type f -printf '%P %s\\n' | LC_ALL=C sort && cat ./*.json; fi; } | sha256sum"
    )


def _fetched(inventory: Inventory, transport: Transport, asked: Request) -> str:
    layout = Layout.of(inventory)
    record = state.read(transport, layout, asked).record
    found = record.model(asked) if record else None
    if found is None:
        raise PreflightError(
            f"no model: {asked} was not fetched yet",
            where=transport.name,
            remedy=f"ddtree-deploy push {transport.name}",
        )
    return found.folder(layout)


def _linked(transport: Transport, link: str, source: str) -> str:
    found = transport.run(f"readlink -e {shlex.quote(link)}", sudo=True, check=False).stdout.strip()
    if not found:
        raise PreflightError(
            f"no model: neither {source} here nor {link} there", where=transport.name, remedy="push it"
        )
    return found
