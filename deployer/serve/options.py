"""vLLM's options for one engine: the inventory's own, passed through, and those that this project decides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deployer.errors import UsageError
from deployer.inventory.given import normalised
from deployer.inventory.model import Inventory
from deployer.serve.decoding import Decoding

DRAIN_SECONDS = 20
WORKER = {"cpu": "ddtree_ext.engine.cpu_worker.DDTreeCPUWorker", "cuda": "ddtree_ext.engine.worker.DDTreeWorker"}
_DECIDED = {
    "model": "[target] path",
    "served-model-name": "[serve] served_model_name",
    "port": "[serve] port",
    "worker-cls": "[tree]",
    "config": "the deployer",
}
TABLE = "num_speculative_tokens_per_batch_size"
_SPECULATIVE_DECIDED = {"method": "dflash", "model": "[drafter]", "num_speculative_tokens": "[tree] budget"}


def engine_options(
    inventory: Inventory, decoding: Decoding, *, target: str, drafter: str, port: int, host: str = "127.0.0.1"
) -> dict[str, Any]:
    """What `vllm serve --config` reads. Raises UsageError when [serve.options] sets what is decided here."""
    given = normalised(inventory.serve.options)
    _refuse(given, _DECIDED, inventory)
    speculative = _mapping(given.pop("speculative-config", {}), "speculative-config", inventory)
    decides = {TABLE: "[tree] table, or the file that [tree] tuned names"} if decoding.table else {}
    _refuse(speculative, _SPECULATIVE_DECIDED | decides, inventory)
    additional = _mapping(given.pop("additional-config", {}), "additional-config", inventory)
    _refuse(additional, {"ddtree": "[tree.options]"}, inventory)
    options: dict[str, Any] = {
        "model": target,
        "served-model-name": [inventory.serve.served_model_name],
        "host": host,
        "port": port,
        "shutdown-timeout": DRAIN_SECONDS,
        "disable-uvicorn-access-log": True,
        **given,
    }
    _require_seconds(options["shutdown-timeout"], "shutdown-timeout", inventory)
    if decoding.kind != "autoregressive":
        decided: dict[str, Any] = {"method": "dflash", "model": drafter, "num_speculative_tokens": decoding.tokens}
        if decoding.table:
            decided[TABLE] = [list(tier) for tier in decoding.table]
        options["speculative-config"] = decided | speculative
    if decoding.kind == "tree":
        _refuse(given, {"attention-backend": "[tree]"}, inventory)
        options["worker-cls"] = WORKER[inventory.install.build]
        additional["ddtree"] = inventory.tree.options.model_dump(exclude_none=True)
        options["attention-backend"] = "CUSTOM"
        if inventory.install.build == "cuda":
            # The drafter's layers keep the stock backend: only the target verifies a tree.
            options["speculative-config"].setdefault("attention_backend", "FLASH_ATTN")
    if additional:
        options["additional-config"] = additional
    return options


def as_yaml(options: Mapping[str, Any]) -> str:
    """One `key: value` line per option, each value in JSON, which YAML reads as it is."""
    return "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in options.items())


def from_yaml(text: str) -> dict[str, Any]:
    """Reads back what `as_yaml` wrote."""
    pairs = (line.partition(": ") for line in text.splitlines() if line)
    return {key: json.loads(value) for key, _, value in pairs}


def _mapping(value: object, name: str, inventory: Inventory) -> dict[str, Any]:
    if isinstance(value, dict):
        return dict(value)
    where = f"inventory {inventory.name}"
    raise UsageError(
        f"[serve.options] {name} has to be a table", where=where, remedy=f"[serve.options.{name}] and a line per key"
    )


def _require_seconds(value: object, name: str, inventory: Inventory) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        what = f"[serve.options] {name} is {value!r}"
        raise UsageError(what, where=f"inventory {inventory.name}", remedy="whole seconds, from 0 on")


def _refuse(given: Mapping[str, Any], decided: Mapping[str, str], inventory: Inventory) -> None:
    for key, by in decided.items():
        if key in given:
            raise UsageError(
                f"[serve.options] must not set {key}: it comes from {by}",
                where=f"inventory {inventory.name}",
                remedy=f"remove {key} from [serve.options]",
            )
