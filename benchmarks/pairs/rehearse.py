"""Engines of evaluation tried early, beside the drafter's training, with a drafter that has learned nothing.

What would fail with the trained one fails here first, minutes before: it is said at once, and an arm that runs only with CUDA
graphs is asked so by evaluation. Kernels that are compiled here are in Triton's cache then.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks.pairs import dflash, store
from benchmarks.pairs.engine import Ask, Turn, answered
from benchmarks.pairs.recipes import Recipe

FOUND = "rehearsed.json"
EAGER, GRAPHS, FAILED = "eager", "graphs", "failed"
NEW = 8
"""Tokens of each request."""
REQUESTS = {"cuda": 4, "cpu": 1}


def untrained(pair: Path, recipe: Recipe) -> Path:
    """PAIR/rehearsal: the target, and a drafter of the recipe's shape as it is initialised."""
    folder = pair / "rehearsal"
    folder.mkdir(exist_ok=True)
    if not (folder / "target").exists():
        (folder / "target").symlink_to((pair / "target").resolve())
    target = json.loads((pair / "target" / "config.json").read_text())
    shape = recipe.drafter
    c = dflash.config(target, mask_token=recipe.mask_token, layers=shape.layers, tap_count=shape.taps, ffn=shape.ffn)
    dflash.save(dflash.Drafter(c), folder / "drafter")
    return folder


def rehearse(pair: Path, recipe: Recipe, device: str, limit: float) -> dict[str, str]:
    """By kind of arm how it ran: eager, with CUDA graphs only, or not at all; printed, and written to PAIR/rehearsed.json."""
    folder, text = untrained(pair, recipe), store.load(pair / "text.npz")
    prompts = [row[:n] for row, n in zip(text.rows, text.prompts, strict=True)][: REQUESTS[device]]

    def one(arm: str) -> tuple[str, str]:
        turn = Turn(arm, len(prompts), [0])
        ask = Ask(arm, str(folder), device, [prompts], [1.0], NEW, recipe.batch, [turn], recipe.max_model_len)
        kind, said = ask.kind, ""
        for way in (EAGER,) if device == "cpu" else (EAGER, GRAPHS):
            found, errors = answered(replace(ask, eager=way == EAGER), pair / "engines" / "rehearsal" / kind, limit)
            if found:
                print(f"rehearsal: {arm} runs, {way}{said}", flush=True)
                return kind, way
            said = f", after it failed: {errors[arm][-600:]}"
        print(f"rehearsal: {arm} FAILS{said}", flush=True)
        return kind, FAILED

    with ThreadPoolExecutor(2 if device == "cuda" else 1) as pool:
        ways = dict(pool.map(one, (f"tree:{max(recipe.trees)}", f"chain:{max(recipe.chains)}")))
    (pair / FOUND).write_text(json.dumps(ways) + "\n")
    return ways


def aside(pair: Path, recipe: Recipe, device: str, limit: float) -> threading.Thread | None:
    """Begins a rehearsal beside what its caller does next; None where one was held."""
    if (pair / FOUND).is_file():
        return None
    thread = threading.Thread(target=rehearse, args=(pair, recipe, device, limit), daemon=True)
    thread.start()
    return thread


def eager(pair: Path, arm: str) -> bool:
    """Whether evaluation asks this arm of an eager engine: unless only CUDA graphs ran."""
    path = pair / FOUND
    ways = json.loads(path.read_text()) if path.is_file() else {}
    return bool(ways.get(arm.partition(":")[0]) != GRAPHS)
