"""Acceptance of a small pair times the cost of a large target's step: python -m benchmarks.pairs.product RESULTS.json

A what-if, and printed as one: what is accepted was measured on the pair of RESULTS.json (evaluate.py), what a step costs is
Qwen3.6-27B's (costs.py). Tokens a second of plain decoding, of stock's chains and of trees, and trees over the best chain, on one
H200 and, estimated, on two RTX A6000. Intervals are acceptance's, 95 % over prompts; a step's cost has none. Wants no GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pairs import acceptance
from benchmarks.pairs.acceptance import Floats, Interval
from benchmarks.pairs.costs import BATCHES, CARDS, CONTEXT, ESTIMATED, MEASURED, MODELLED, Cost, cost

PLAIN = "ar"
SOURCES = {
    MEASURED: "measured on one H200 with random weights, 4096 tokens of context, six tokens a step",
    MODELLED: "from benchmarks/gpu's model of a step on the H200, which was within 5 % of every step measured there",
    ESTIMATED: "an estimate, nothing was measured on an RTX A6000; the range is for rates 20 % better and 20 % worse",
}


@dataclass(frozen=True)
class Row:
    """One arm on one card in one batch: tokens a step of a request, a step's cost, tokens a second of the batch; of a tree, its
    speed over the best chain's.
    """

    arm: str
    length: Interval
    cost: Cost
    speed: Interval
    over: Interval | None = None
    over_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Cell:
    """All arms of one temperature, card and batch; `chain` and `tree` are the fastest."""

    heat: str
    card: str
    batch: int
    rows: tuple[Row, ...]
    chain: Row
    tree: Row


def scaled(found: Interval, by: float) -> Interval:
    return Interval(found.value * by, found.low * by, found.high * by)


def counts(results: dict[str, Any], heat: str, arm: str, kind: str) -> Floats:
    """[prompts, 2]: tokens and steps of an arm's requests of one set, or of all."""
    cells = results["arms"][arm][heat]
    kinds = [name for name in cells if name != "all"] if kind == "all" else [kind]
    return np.concatenate([np.array(cells[name]["counts"], dtype=np.float64).reshape(-1, 2) for name in kinds])


def refuse(results: dict[str, Any], kind: str) -> None:
    """Raises SystemExit naming what a product cannot be made without."""
    arms = results.get("arms") or {}
    chains, trees = ([arm for arm in arms if arm.startswith(what)] for what in ("chain:", "tree:"))
    missing = [what for what, found in (("a chain (chain:K)", chains), ("a tree (tree:B)", trees)) if not found]
    if missing:
        said = "; ".join(f"{arm}: {str(error)[:100]}" for arm, error in (results.get("errors") or {}).items())
        raise SystemExit(
            f"no product without {' and '.join(missing)}: the results have {', '.join(arms) or 'no arm'}"
            + (f" ({said})" if said else "")
        )
    heats, prompts = set(arms[chains[0]]), {}
    for arm in (*chains, *trees):
        if set(arms[arm]) != heats:
            raise SystemExit(f"{arm} has temperatures {sorted(arms[arm])}, {chains[0]} has {sorted(heats)}")
        for heat, cells in arms[arm].items():
            held = [name for name in cells if name != "all" and "counts" in cells[name]]
            if not held or (kind != "all" and kind not in held):
                raise SystemExit(f"{arm} at T={heat} has no counts of {kind}: evaluate again, its results are too old")
            prompts[arm, heat] = len(counts(results, heat, arm, kind))
    if len(set(prompts.values())) != 1 or not min(prompts.values()):
        raise SystemExit(f"arms answered different numbers of prompts: {sorted(set(prompts.values()))}")


def cell(results: dict[str, Any], heat: str, card: str, batch: int, kind: str) -> Cell:
    """Every arm of the results that has a cost; the best chain is the fastest, not the one that accepts most."""
    arms = [PLAIN, *(arm for arm in results["arms"] if arm.startswith(("chain:", "tree:")))]
    rows: dict[str, Row] = {}
    for arm in arms:
        length = Interval(1.0, 1.0, 1.0)
        if arm != PLAIN:
            length = acceptance.acceptance(counts(results, heat, arm, kind))
        paid = cost(card, arm, batch, length.value)
        rows[arm] = Row(arm, length, paid, scaled(length, 1e3 * batch / paid.ms))

    def fastest(what: str) -> Row:
        return max((row for row in rows.values() if row.arm.startswith(what)), key=lambda row: row.speed.value)

    chain = fastest("chain:")
    for arm in [arm for arm in arms if arm.startswith("tree:")]:
        own, of = rows[arm], chain.cost
        longer = acceptance.ratio(counts(results, heat, arm, kind), counts(results, heat, chain.arm, kind))
        rows[arm] = Row(
            arm, own.length, own.cost, own.speed, scaled(longer, of.ms / own.cost.ms),
            (longer.value * of.low / own.cost.low, longer.value * of.high / own.cost.high),
        )  # fmt: skip
    return Cell(heat, card, batch, tuple(rows.values()), chain, fastest("tree:"))


def product(results: dict[str, Any], kind: str = "all") -> list[Cell]:
    """By temperature, card and batch. Raises SystemExit where the results lack what it takes."""
    refuse(results, kind)
    heats = next(found for arm, found in results["arms"].items() if arm.startswith("chain:"))
    return [cell(results, heat, card, batch, kind) for heat in heats for card in CARDS for batch in BATCHES]


def heading(results: dict[str, Any], kind: str) -> str:
    pair = results.get("pair", "(unnamed)")
    return f"""\
A WHAT-IF. Acceptance: measured on the pair {pair} alone, a small target and its own drafter, prompts of {kind}.
Cost of a step: Qwen3.6-27B's with its 1.7B drafter, {CONTEXT} tokens of context. Nobody has run this acceptance at this cost:
it says what the 27B would gain if its drafter accepted as the small one does. Intervals: 95 % over prompts, of acceptance
alone; the fastest chain and tree are picked on the same prompts."""


def table(found: Cell) -> Iterator[str]:
    yield f"\nT={found.heat}, {found.card}, {found.batch} request{'s' if found.batch > 1 else ''}"
    yield f"  {'arm':<9} {'tokens/step':>19} {'ms/step':>8} {'':<10} {'tokens/s':>22}   over {found.chain.arm}"
    for row in found.rows:
        length = "{:.2f} [{:.2f} {:.2f}]".format(*row.length.rounded())
        speed = "{:.1f} [{:.1f} {:.1f}]".format(*row.speed.rounded())
        over = ""
        if row.over:
            over = "{:.3f} [{:.3f} {:.3f}]".format(*row.over.rounded())
        if row.over_range and row.cost.source == ESTIMATED:
            over += " (rates: {:.3f} to {:.3f})".format(*sorted(row.over_range))
        best = "  fastest chain" if row is found.chain else "  fastest tree" if row is found.tree else ""
        yield f"  {row.arm:<9} {length:>19} {row.cost.ms:8.2f} {row.cost.source:<10} {speed:>22}   {over}{best}".rstrip()


def shown(results: dict[str, Any], kind: str = "all") -> str:
    cells = product(results, kind)
    lines = [heading(results, kind)]
    for found in cells:
        lines += table(found)
    lines += ["", *(f"{source}: {what}" for source, what in SOURCES.items()), ""]
    for found in cells:
        over = "{:.3f} [{:.3f} {:.3f}]".format(*found.tree.over.rounded()) if found.tree.over else ""
        lines.append(
            f"what-if, T={found.heat}, {found.card}, batch {found.batch}: {found.tree.arm} over {found.chain.arm} {over}"
            f" ({found.tree.cost.source} and {found.chain.cost.source} steps)"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs.product")
    parser.add_argument("results", type=Path)
    parser.add_argument("--set", dest="kind", default="all", help="one prompt set alone")
    given = parser.parse_args()
    if not given.results.is_file():
        raise SystemExit(f"{given.results} is missing: it wants the results.json of an evaluation")
    print(shown(json.loads(given.results.read_text()), given.kind))


if __name__ == "__main__":
    main()
