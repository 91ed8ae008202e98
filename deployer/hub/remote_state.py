"""Runs on the host, by its own Python: what is known of a fetch, and what a judgement of its files needs. Standard
library only; started like push's remote.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

FAILED = 74
HEAD = 64  # bytes
MAX_HEADER = 100_000_000


def state(folder: str, unit: str) -> None:
    """Prints whether the fetch runs, its last status, and its record, as JSON."""
    # In this order: a status that is read after the unit was seen to have ended is its last.
    said = subprocess.run(["systemctl", "is-active", unit], capture_output=True, text=True, check=False).stdout.strip()
    answer: dict[str, Any] = {"active": said in {"active", "activating", "deactivating"}}
    for name in ("status", "record"):
        try:
            with open(os.path.join(folder, f"{name}.json"), encoding="utf-8") as file:
                answer[name] = json.load(file)
        except FileNotFoundError:
            answer[name] = None
    print(json.dumps(answer))


def prepare(folder: str, texts: dict[str, str]) -> None:
    """Writes the files of a fetch that is about to start; how an earlier one ended is forgotten."""
    os.makedirs(folder, exist_ok=True)
    for name, text in texts.items():
        place = os.path.join(folder, name)
        with open(f"{place}.part", "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.replace(f"{place}.part", place)
    status = os.path.join(folder, "status.json")
    if os.path.exists(status):
        os.unlink(status)


def heads(weights: dict[str, str], texts: dict[str, str], checked: dict[str, str]) -> None:
    """Prints of safetensors files [size, their first bytes in hexadecimal, the header's text]; of `texts` the text; of
    `checked` what is wrong with their JSON. All are name -> path.
    """
    found: dict[str, Any] = {"weights": {}, "texts": {}, "damaged": {}}
    for name, path in weights.items():
        with open(path, "rb") as file:
            start = file.read(HEAD)
            length = int.from_bytes(start[:8], "little")
            file.seek(8)
            text = file.read(length) if length <= MAX_HEADER else b""
        found["weights"][name] = [os.path.getsize(path), start.hex(), text.decode("utf-8", "replace")]
    for name, path in texts.items():
        with open(path, encoding="utf-8", errors="replace") as opened:
            found["texts"][name] = opened.read()
    for name, path in checked.items():
        try:
            with open(path, "rb") as file:
                json.load(file)
        except (ValueError, RecursionError) as error:
            found["damaged"][name] = str(error)
    print(json.dumps(found))


def main(verb: str, *words: Any) -> None:
    """One verb; words as its function takes them."""
    os.umask(0o022)
    verbs: dict[str, Callable[..., None]] = {"state": state, "prepare": prepare, "heads": heads}
    try:
        verbs[verb](*words)
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)
