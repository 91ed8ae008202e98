"""The target model on the host: what its config.json says of the things a drafter depends on."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.transport.base import Transport

_MTP = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
COMMAND = "cat {PATH}/config.json 2>/dev/null; true"


@dataclass(frozen=True)
class Target:
    """None where config.json does not say. `mtp_layers` are those of a multi-token-prediction head; 0 without one."""

    model_type: str | None
    layers: int | None
    hidden: int | None
    vocabulary: int | None
    mtp_layers: int = 0


def command(path: str) -> str:
    return COMMAND.replace("{PATH}", shlex.quote(path))


def parse(text: str) -> Target | None:
    """Reads a config.json; a multimodal one keeps the numbers in its text_config. None when there is no such file."""
    try:
        config: dict[str, Any] = json.loads(text)
        numbers: dict[str, Any] = {**config, **config.get("text_config", {})}
    except (ValueError, TypeError):
        return None
    return Target(
        model_type=config.get("model_type"),
        layers=numbers.get("num_hidden_layers"),
        hidden=numbers.get("hidden_size"),
        vocabulary=numbers.get("vocab_size"),
        mtp_layers=next((int(numbers[key]) for key in _MTP if numbers.get(key)), 0),
    )


def read(transport: Transport, path: str) -> Target | None:
    return parse(transport.run(command(path), sudo=True).stdout)


def read_here(folder: Path) -> Target | None:
    """The same of a folder on the laptop."""
    file = folder / "config.json"
    return parse(file.read_text()) if file.is_file() else None
