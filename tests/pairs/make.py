"""Makes one trained pair: python -m tests.pairs.make KIND OUT [--block-size 8|16]

KIND is dense, hybrid or hybrid128. Writes OUT/KIND/target and OUT/KIND/drafter, and does nothing where
these same sources already made them. Runs on the CPU, from fixed seeds, with the engine's Python; three to
five minutes on one core.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.pairs import qwen3_5
from tests.pairs import configs, drafter, target
from tests.pairs.prompts import DEMO_PROMPT, NEW_TOKENS, PROMPTS

STAMP = "made-by"
SOURCES = ("configs", "corpus", "drafter", "grammar", "greedy", "make", "prompts", "target", "tokenizer")


@dataclass(frozen=True)
class Recipe:
    """Steps of training, each on ``batch`` sequences of ``length`` tokens; at most ``rounds`` of polishing."""

    target_steps: int
    drafter_steps: int = 350
    batch: int = 12
    length: int = 128
    rounds: int = 24


RECIPES = {"dense": Recipe(250), "hybrid": Recipe(220, batch=10), "hybrid128": Recipe(220)}
"""Gated DeltaNet learns the grammar in fewer steps, and its steps cost more."""


def stamp(kind: configs.Kind, block_size: int) -> str:
    """What a pair was made by: its options and the text of every source that has a say."""
    digest = hashlib.sha256(f"{kind} {block_size} torch {torch.__version__}".encode())
    for name in SOURCES:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    digest.update(Path(qwen3_5.__file__).read_bytes())
    return digest.hexdigest() + "\n"


def make(kind: configs.Kind, folder: Path, block_size: int, recipe: Recipe) -> None:
    """Train the pair into ``folder``. Raises SystemExit where the target keeps near ties on the prompts."""
    target_folder, drafter_folder = folder / "target", folder / "drafter"
    target.write_config(target_folder, configs.target(kind))
    model = target.initialise(target_folder, seed=0)
    size = {"batch": recipe.batch, "length": recipe.length}
    target.train(model, steps=recipe.target_steps, seed=1, **size)
    smallest = target.polish(model, (*PROMPTS, DEMO_PROMPT), NEW_TOKENS, rounds=recipe.rounds, seed=2)
    if smallest < target.NEAR_TIE:
        raise SystemExit(
            f"{kind}: the target's smallest greedy gap is {smallest:.3f} after {recipe.rounds} rounds, below"
            f" {target.NEAR_TIE}: raise rounds or target_steps of its recipe in tests/pairs/make.py"
        )
    target.save(model, target_folder)
    config = configs.drafter(kind, block_size)
    target.write_config(drafter_folder, config)
    learned = drafter.train(
        target.load(target_folder), config, steps=recipe.drafter_steps, seed=3, batch=12, length=recipe.length
    )
    drafter.save(learned, drafter_folder)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.pairs.make", description="Train one tiny pair.")
    parser.add_argument("kind", choices=configs.KINDS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--block-size", type=int, choices=configs.BLOCK_SIZES, default=8)
    options = parser.parse_args()
    folder, wanted = options.out / options.kind, stamp(options.kind, options.block_size)
    if (folder / STAMP).is_file() and (folder / STAMP).read_text() == wanted:
        print(f"{folder}: up to date")
        return
    torch.set_num_threads(1)  # sums round the same everywhere; and threads slow the small triangular solves down
    torch.use_deterministic_algorithms(True)
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    make(options.kind, fresh, options.block_size, RECIPES[options.kind])
    (fresh / STAMP).write_text(wanted)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    print(f"{folder}: made")


if __name__ == "__main__":
    sys.exit(main())
