"""What a decode step of Qwen3.6-27B costs, out of benchmarks/gpu: measured on one H200, modelled between its measurements,
estimated for two RTX A6000. Wants no GPU. 4096 tokens of context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from benchmarks.gpu.calibration import MEASURED as CELLS
from benchmarks.gpu.dims import QWEN36_27B
from benchmarks.gpu.estimate import PAIR
from benchmarks.gpu.roofline import H200
from benchmarks.gpu.whole_step import Arm, Machine, step

CONTEXT = 4096
CARDS = ("H200", "2x RTX A6000")
BATCHES = (1, 8)
MEASURED, MODELLED, ESTIMATED = "measured", "modelled", "estimated"
PATH = 6.0
"""Rows accepted, the root counted, where no acceptance is given: what the measured steps were forced to."""


@dataclass(frozen=True)
class Cost:
    """Milliseconds of a step and where they come from; `low` to `high`: rates 20 % better to 20 % worse, where they are an
    assumption.
    """

    ms: float
    source: str
    low: float
    high: float


def cost(card: str, arm: str, batch: int, path: float = PATH) -> Cost:
    """Of `arm` (ar, chain:K, tree:B) on one of CARDS; `path` is the arm's tokens a step. Raises ValueError for another card."""
    if card not in CARDS:
        raise ValueError(f"no cost of a step on {card}; there are {', '.join(CARDS)}")
    if card == "H200":
        cell = next((cell for cell in CELLS if (cell.arm, cell.batch) == (arm, batch)), None)
        if cell:
            return Cost(cell.ms, MEASURED, cell.ms, cell.ms)
        ms = _model(Machine(H200), arm, batch, path)
        return Cost(ms, MODELLED, ms, ms)
    low, ms, high = (_model(replace(PAIR, quality=quality), arm, batch, path) for quality in (1.2, 1.0, 0.8))
    return Cost(ms, ESTIMATED, low, high)


def _model(machine: Machine, arm: str, batch: int, path: float) -> float:
    return 1e3 * sum(step(QWEN36_27B, Arm.of(arm), batch, CONTEXT, machine, path).values())


@dataclass(frozen=True)
class Curve:
    """Milliseconds of a step of `batch` requests by what their trees hold: `rungs` are (nodes of a request on the average, ms),
    ascending. Between two rungs a step costs the higher one: a captured graph runs all of its rows.
    """

    card: str
    batch: int
    rungs: tuple[tuple[int, float], ...]

    def ms(self, nodes: int) -> float:
        """Of a step whose trees hold `nodes` nodes in all. Raises ValueError above the last rung."""
        for each, ms in self.rungs:
            if nodes <= each * self.batch:
                return ms
        raise ValueError(f"{nodes} nodes in {self.batch} trees: costs end at {self.rungs[-1][0]} nodes each")


def curves(budgets: Sequence[int]) -> list[Curve]:
    """Of our trees by budget, 0 nodes (a drafter's pass and one row) among them, for every card and batch."""
    return [
        Curve(card, batch, tuple((nodes, cost(card, f"tree:{nodes}", batch).ms) for nodes in sorted({0, *budgets})))
        for card, batch in product(CARDS, BATCHES)
    ]
