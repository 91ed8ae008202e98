"""One pair in one go: target, text, drafter, evaluation. See README.md beside this.

    python -m benchmarks.pairs.run --pair smollm2 --minutes 24 --out FOLDER
    python -m benchmarks.pairs.run --pair hybrid --minutes 24 --stop-after 9 --out FOLDER     # and again, until it says done
    python -m benchmarks.pairs.run --pair hybrid --smoke --out FOLDER                         # two cores; numbers mean nothing

Every part is kept under --work and not done twice, so a cut run goes on where it was. FOLDER gets files of at most 16 MiB:
results.json, traces.npz, training.json (seconds and curves), the curves' images, and the pair in pieces, which pack.py puts
together.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.pairs import pack, training, write_text
from benchmarks.pairs.engine import end_with
from benchmarks.pairs.recipes import RECIPES, SMOKE, Recipe

SMOKE_SECONDS = {"target": 20.0, "drafter": 15.0}
TEXT_SHARE = 0.25
"""Of the minutes, after which the target's text is what has been written; three minutes at least, for engines to load."""
EVALUATION_SHARE = 0.36
"""Of the minutes, kept for evaluation at least."""
SLOW = 180.0
"""Seconds more, for engines that take long to load, before they are given up."""
REHEARSAL = 300.0
"""Seconds after which an engine that is tried beside the training is given up."""
SIMULATION = 90.0
"""Seconds that it takes on one core, at two temperatures."""


def watched(parent: int) -> None:
    """Of a training's process: it ends with the one that began it, or the next call would train beside it."""
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()


def apart(train: Callable[..., bool], *args: Any) -> bool:
    """Runs a training in a process of its own, so that all of its GPU memory is free after it."""
    with ProcessPoolExecutor(1, get_context("spawn"), watched, (os.getpid(),)) as pool:
        return pool.submit(train, *args).result()


@dataclass
class Driver:
    """Where things are, how long there is, and what each part took."""

    name: str
    recipe: Recipe
    pair: Path
    out: Path
    device: str
    minutes: float
    stop_after: float
    smoke: bool
    gguf: Path | None
    began: float = field(default_factory=time.monotonic)
    took: dict[str, float] = field(default_factory=dict)

    def left(self) -> float:
        """Seconds until this process should end."""
        return self.stop_after * 60 - (time.monotonic() - self.began)

    def in_pieces(self) -> bool:
        """Whether other calls go on with what this one does not end."""
        return self.stop_after < self.minutes

    def seconds(self, part: str, share: float) -> float:
        """Of training a part: its share; less, down to 40 %, where a run in one go would not leave evaluation its own."""
        if self.smoke:
            return SMOKE_SECONDS[part]
        whole = share * self.minutes * 60
        if part == "target" or self.in_pieces():
            return whole
        return min(whole, max(0.4 * whole, self.left() - EVALUATION_SHARE * self.minutes * 60))

    def note(self, part: str, began: float) -> None:
        self.took[part] = round(time.monotonic() - began, 1)
        print(f"{part}: {self.took[part]:.0f} s, {self.left():.0f} s left", flush=True)
        self.out.mkdir(parents=True, exist_ok=True)
        before = self.pair / "seconds.json"  # of the calls before this one
        held = json.loads(before.read_text()) if before.is_file() else {}
        held[part] = round(held.get(part, 0.0) + self.took[part], 1)
        before.write_text(json.dumps(held) + "\n")
        points = [self.pair / f"{half}-loss.json" for half in ("target", "drafter")]
        curves: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in points if path.is_file()}
        (self.out / "training.json").write_text(json.dumps({"seconds": held, **curves}) + "\n")
        for half in ("target", "drafter"):
            if (svg := self.pair / f"{half}-loss.svg").is_file():
                shutil.copy(svg, self.out)

    def target(self) -> bool:
        """The target's folder; False when its training has to go on in another call."""
        from benchmarks.pairs import hybrid, smollm2

        if self.recipe.hybrid is None:
            smollm2.convert(self.gguf or smollm2.find_gguf(), self.pair / "target")
            return True
        if (self.pair / "target" / "source.json").is_file():  # written last
            return True
        clock = training.Clock(self.seconds("target", self.recipe.target_share), max(1.0, self.left() - 40))
        return apart(hybrid.train, self.pair, self.recipe.hybrid, clock, self.device)

    def text(self) -> bool:
        """What the target wrote; False where this call is a piece and has no room for it."""
        if self.in_pieces() and self.left() < 300 and not (self.pair / "text.npz").is_file():
            return False
        limit = max(60.0, self.left() - 10)
        seconds = 0.0 if self.smoke else min(limit, max(180.0, TEXT_SHARE * self.minutes * 60))
        text = write_text.write(
            self.pair, self.recipe, self.device, seconds, min(limit, seconds + SLOW) if seconds else limit
        )
        print(f"text: {len(text.rows)} answers, {text.tokens} tokens", flush=True)
        return True

    def drafter(self) -> bool:
        """The trained drafter; False when its training has to go on in another call."""
        from benchmarks.pairs import rehearse, train_drafter

        if (self.pair / "drafter" / "trained.json").is_file():
            return True
        rehearsal = rehearse.aside(self.pair, self.recipe, self.device, min(REHEARSAL, max(30.0, self.left() - 20)))
        clock = training.Clock(self.seconds("drafter", self.recipe.drafter_share), max(1.0, self.left() - 40))
        shape, mask = self.recipe.drafter, self.recipe.mask_token
        done = apart(train_drafter.train, self.pair, shape, clock, mask, self.device)
        if rehearsal and done:
            rehearsal.join(REHEARSAL if self.smoke else 20.0)
        return done

    def evaluation(self) -> bool:
        """Results; False where this call is a piece and most of it is gone. Raises SystemExit where no arm gave any."""
        from benchmarks.pairs import evaluate

        if self.in_pieces() and self.left() < 0.75 * self.stop_after * 60:
            return False
        limit = max(60.0, self.left() - 15)
        results = evaluate.evaluate(self.pair, self.recipe, self.device, self.out, limit)
        if results["errors"]:
            print(f"without: {', '.join(results['errors'])}", flush=True)
        if not results["arms"] or (self.smoke and results["errors"]):
            raise SystemExit("evaluation failed; what the engines said is above")
        return True

    def simulation(self) -> None:
        """Other trees on evaluation's traces, where there is time: it can be done later, on any machine."""
        from benchmarks.pairs import simulate

        if not (self.out / "traces.npz").is_file():
            return
        if not self.smoke and self.left() < SIMULATION:
            print(
                f"simulation left out: python -m benchmarks.pairs.simulate {self.out} does it on any machine",
                flush=True,
            )
            return
        simulate.add(self.out)

    def keep(self) -> None:
        """The trained pair, in pieces; of SmolLM2 the drafter alone."""
        parts = ("target", "drafter") if self.recipe.hybrid else ("drafter",)
        pack.pack(self.pair, parts, self.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs.run")
    parser.add_argument("--pair", choices=RECIPES, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("build/real"))
    parser.add_argument(
        "--minutes", type=float, default=24.0, help="the whole plan: what the shares of the recipe are shares of"
    )
    parser.add_argument(
        "--stop-after", type=float, help="minutes of this call; the next call goes on (default: --minutes)"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--gguf", type=Path, help="SmolLM2's file, where its package is not installed")
    parser.add_argument(
        "--smoke", action="store_true", help="the whole path at tiny sizes, on a CPU unless told otherwise"
    )
    return parser.parse_args()


def main() -> int:
    given = arguments()
    os.environ |= {"TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "true"}
    recipe = (SMOKE if given.smoke else RECIPES)[given.pair]
    device = given.device or ("cpu" if given.smoke else "cuda")
    name = given.pair + ("-smoke" if given.smoke else "")
    stop = given.stop_after or (600.0 if given.smoke else given.minutes)
    driver = Driver(
        given.pair, recipe, given.work / name, given.out, device, given.minutes, stop, given.smoke, given.gguf
    )
    for part in (driver.target, driver.text, driver.drafter):
        began = time.monotonic()
        if not part():
            driver.note(part.__name__, began)
            print(f"{part.__name__} has to go on: call again with the same options")
            return 3
        driver.note(part.__name__, began)
    driver.keep()
    began = time.monotonic()
    done = driver.evaluation()
    driver.note("evaluation", began)
    driver.simulation()
    print("done" if done else "evaluation is to come: call again with the same options")
    return 0 if done else 3


if __name__ == "__main__":
    raise SystemExit(main())
