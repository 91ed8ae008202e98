"""What `serve` would refuse, said from the inventory and the files of this machine alone: before a host is asked anything."""

from __future__ import annotations

from deployer.inventory.given import most_requests
from deployer.inventory.model import Inventory
from deployer.inventory.secret import Secret
from deployer.serve import decoding
from deployer.serve.decoding import Decoding
from deployer.serve.render import Engine, Place, local_secrets, render

_NOWHERE = "/"  # in place of folders that only the host knows


def service(inventory: Inventory, *, secrets: bool = True) -> None:
    """UsageError that `serve` would end with: how it decodes, its options, its variables, its secrets.

    Without `secrets` their names are looked at and their values are not: who reviews a file need not have them.
    """
    _rendered(inventory, decoding.served(inventory), secrets)


def engine(inventory: Inventory) -> None:
    """The same of an engine that decodes as it is told: for what measures other ways than the one that is served, as
    `tune` does, which makes the file that [tree] tuned names.
    """
    _rendered(inventory, decoding.autoregressive(), secrets=True)


def _rendered(inventory: Inventory, how: Decoding, secrets: bool) -> None:
    """Makes the files of a deployment, as `serve` will, and keeps nothing of them."""
    most_requests(inventory)
    values = local_secrets(inventory) if secrets else dict.fromkeys(inventory.serve.secrets, Secret(""))
    render(inventory, Place.of_service(inventory), Engine(_NOWHERE, inventory.target.path, _NOWHERE, how), (), values)
