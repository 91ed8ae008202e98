"""vLLM's options as an inventory gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployer.errors import UsageError
from deployer.inventory.model import Inventory

SEQS = "max-num-seqs"


def normalised(options: Mapping[str, Any]) -> dict[str, Any]:
    """Option names with dashes, and a false flag as its `no-` form: vLLM drops `key: false` from a config silently."""
    result: dict[str, Any] = {}
    for key, value in options.items():
        name = key.lstrip("-").replace("_", "-")
        if value is False:
            result[name.removeprefix("no-") if name.startswith("no-") else f"no-{name}"] = True
        else:
            result[name] = value
    return result


def most_requests(inventory: Inventory) -> int | None:
    """Requests that a step takes at most, where the inventory says so. Raises UsageError for what is no such number."""
    most = normalised(inventory.serve.options).get(SEQS)
    if most is None or (isinstance(most, int) and most >= 1):
        return most
    raise UsageError(f"{SEQS} is {most!r}", where=f"inventory {inventory.name}", remedy="a number from 1 on")
