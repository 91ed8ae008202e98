"""Decoding simulated on traces: acceptance of other trees, and tokens a millisecond at a measured cost: python -m
benchmarks.pairs.simulate FOLDER

FOLDER holds an evaluation's traces.npz and results.json; its policies go into the latter as "simulated". Wants no GPU.

The walk down a text that the target wrote is the engine's own: at every step a tree is grown from the block at the last
committed token and cut where the text leaves it. So at T = 0 the simulated acceptance length is what an engine would show up to
rounding, and at T > 0 it is an unbiased sample, since the text was drawn without regard to any tree.

CaDDTree's stop: trees grow best first, those of a batch together, until another node no longer pays for the longer step: of all
sizes that a graph may have the one with the most expected tokens a millisecond is taken, at every step anew. What a node is
expected to bring is what the drafter says of it (or a calibration of that), so a drafter that is too sure grows too much.

What cannot be simulated: a second pass of the drafter below siblings. A trace has one pass; the slots below a sibling were
drafted without knowing it. It would take, for every block whose first miss has a rank, a pass with the true tokens up to there in
place of MASK and without the target's states of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pairs import costs, policies, tables, trace
from benchmarks.pairs.acceptance import acceptance
from benchmarks.pairs.costs import Curve
from benchmarks.pairs.policies import Node, Policy
from benchmarks.pairs.trace import Trace

BUDGETS = (7, 15, 31, 63)
FEWEST = 32
"""Texts: a half is fitted on and a half decoded, and batches of eight have to be full for a while."""
Grown = list[tuple[Node, float]]
Chooser = Callable[[Sequence[Grown], Curve], list[int]]
"""How many nodes of each request's tree are verified, of the batch's trees as they would grow."""


def fixed(budget: int) -> Chooser:
    """So many nodes for every request."""

    def choose(batch: Sequence[Grown], curve: Curve) -> list[int]:
        return [min(budget, len(grown)) for grown in batch]

    return choose


def stop(batch: Sequence[Grown], curve: Curve) -> list[int]:
    """CaDDTree's: the rung of the curve with the most expected tokens a millisecond, filled with the batch's likeliest nodes.

    Not the first rise but the best rung: costs rise in stairs.
    """
    chances = [np.exp(np.minimum.accumulate([score for _, score in grown])) for grown in batch]
    merged = np.sort(np.concatenate(chances))[::-1]
    expected = np.concatenate([[0.0], np.cumsum(merged)])
    sizes = [min(each * curve.batch, len(merged)) for each, _ in curve.rungs]
    rates = [(len(batch) + expected[size]) / curve.ms(size) for size in sizes]
    size = sizes[int(np.argmax(rates))]
    if size == 0:
        return [0] * len(batch)
    above = [int((each > merged[size - 1]).sum()) for each in chances]
    left = size - sum(above)  # of nodes exactly at the bar, as many as still fit
    for i, each in enumerate(chances):
        more = min(left, int((each == merged[size - 1]).sum()))
        above[i], left = above[i] + more, left - more
    return above


@dataclass
class Text:
    """One text as it is decoded: where it is, and what it took."""

    trace: Trace
    at: int = 0
    tokens: int = 0
    steps: int = 0
    nodes: int = 0
    ms: float = 0.0


@dataclass
class Decoded:
    """Of the texts that were decoded in full batches: each one's tokens, steps, nodes and share of the milliseconds."""

    texts: list[Text] = field(default_factory=list)

    def cell(self) -> dict[str, Any]:
        """Tokens a millisecond of the whole batch with its interval over texts; tokens and nodes a step and request."""
        kept = [text for text in self.texts if text.steps]
        steps = sum(text.steps for text in kept)
        return {
            "tokens_per_ms": acceptance(np.array([[t.tokens, t.ms] for t in kept]).reshape(-1, 2)).rounded(),
            "tokens": round(sum(t.tokens for t in kept) / max(1, steps), 4),
            "nodes": round(sum(t.nodes for t in kept) / max(1, steps), 2),
        }


def decoded(policy: Policy, found: Sequence[Trace], curve: Curve, choose: Chooser) -> Decoded:
    """Texts in lock step, `curve.batch` at a time, the next one in place of one that ended, while the batch is full."""
    waiting = [Text(t) for t in found if policies.whole(t, 0)]
    done, limit = Decoded(list(waiting)), curve.rungs[-1][0]
    live: list[Text] = []
    while True:
        live = [text for text in live if policies.whole(text.trace, text.at)]
        while waiting and len(live) < curve.batch:
            live.append(waiting.pop(0))
        if len(live) < curve.batch:
            return done
        trees = [policies.grown(policy, text.trace, text.at, limit) for text in live]
        sizes = choose(trees, curve)
        share = curve.ms(sum(sizes)) / len(live)
        for text, tree, size in zip(live, trees, sizes, strict=True):
            gain = policies.followed(tree[:size], text.trace, text.at) + 1
            text.at, text.tokens, text.steps = text.at + gain, text.tokens + gain, text.steps + 1
            text.nodes, text.ms = text.nodes + size, text.ms + share


def tried(found: Sequence[Trace], budgets: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Policy -> budget -> acceptance length with its interval, on the second half of the texts; fitted on the first."""
    half = len(found) // 2
    learn, test = found[:half], found[half:]
    width = found[0].ranks.shape[1]
    result: dict[str, Any] = {}
    for policy in (policies.plain(), policies.without_spine(), *policies.fitted(learn)):
        for budget in budgets:
            counted = np.array([policies.walked(policy, t, budget) for t in test], dtype=np.float64)
            result.setdefault(policy.name, {})[str(budget)] = acceptance(counted).rounded()
    # a budget of the drafter's width is a chain, whatever the scores
    counted = np.array([policies.walked(policies.plain(), t, width) for t in test], dtype=np.float64)
    return {"chain": {str(width): acceptance(counted).rounded()}, **result}


def paid(found: Sequence[Trace], curve: Curve) -> dict[str, Any]:
    """Tokens a millisecond on the second half of the texts: fixed budgets, then CaDDTree's stop as the drafter says and calibrated
    on the first half.
    """
    half = len(found) // 2
    learn, test = found[:half], found[half:]
    cells = {
        f"{each} nodes": decoded(policies.plain(), test, curve, fixed(each)).cell() for each, _ in curve.rungs if each
    }
    calibrated = {policy.name: policy for policy in policies.fitted(learn)}["temperature and discount"]
    for name, policy in (("stop", policies.plain()), ("stop, calibrated", calibrated)):
        free = Policy(name, policy.scores, spine_first=False)
        cells[name] = decoded(free, test, curve, stop).cell()
    return cells


def simulated(by_heat: dict[float, list[Trace]], budgets: Sequence[int] = BUDGETS) -> dict[str, Any]:
    """By temperature: acceptance of each policy by budget; by card and batch what each would bring a millisecond. Texts are in an
    order of chance, so that both halves hold every set; those too short for a whole block are left out.
    """
    result = {}
    for heat, traced in by_heat.items():
        found = [t for t in traced if policies.whole(t, 0)]
        if len(found) < FEWEST:
            print(f"T={heat}: {len(found)} texts are too few to simulate on, it takes {FEWEST}", flush=True)
            continue
        width = found[0].ranks.shape[1]
        result[str(heat)] = {
            "texts": len(found),
            "policies": tried(found, [budget for budget in budgets if budget >= width]),
            "paid": {f"{c.card}, batch {c.batch}": paid(found, c) for c in costs.curves(budgets)},
        }
    return result


def add(folder: Path) -> None:
    """Simulates on FOLDER's traces, puts it into its results.json and prints it. Raises SystemExit where a file is missing."""
    path, traces = folder / "results.json", folder / "traces.npz"
    for needed in (path, traces):
        if not needed.is_file():
            raise SystemExit(f"{needed} is missing: it wants the folder that an evaluation wrote")
    results = json.loads(path.read_text())
    results["simulated"] = simulated(trace.load(traces))
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(results) + "\n")
    fresh.replace(path)
    print(tables.tried(results), tables.paid(results), sep="\n\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs.simulate")
    parser.add_argument("folder", type=Path, help="of an evaluation: results.json and traces.npz")
    add(parser.parse_args().folder)


if __name__ == "__main__":
    main()
