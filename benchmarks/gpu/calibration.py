"""What a step's kernels achieved on one H200, as constants: of the bytes and FLOPs that are counted for them.

From the kernels of 12 profiled steps of each arm, and from the windows timed without a profiler:

    python -m benchmarks.gpu.step_time --preset 27b --arms chain:15,spine:15,tree:15,tree:31,tree:63 --batch 1,8 \\
        --prompt 4096 --windows 6 --profile 12 --forced 6

and, for the commit of a path of six rows alone, from `python -m benchmarks.gpu.kernels --batch 1,8 --nodes 15,31,63`. Driver
580.159, torch 2.11.0+cu130, Triton 3.6, vLLM 0.32.0; random weights. A fit (Rate) goes through a kernel's time at batch 1 and
at batch 8: the same shares explain both, so that a batch between them, or another card, need not have been measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """A kernel: microseconds of each launch whatever it does, and the share of the roofline that the rest runs at."""

    launch: float
    share: float

    def seconds(self, launches: float, roofline: float) -> float:
        """roofline: seconds of all launches at peak rates."""
        return launches * self.launch * 1e-6 + roofline / self.share


@dataclass(frozen=True)
class MatrixRates:
    """Dense products: shares of the memory's and of the bf16 units' peaks, microseconds of each product (its launch, its tail
    and its split's reduction), and how softly the one bound gives way to the other: the norm that joins them.
    """

    memory: float
    compute: float
    launch: float
    bend: int

    def seconds(self, products: float, moving: float, computing: float) -> float:
        """moving, computing: seconds of all `products` at peak rates."""
        longest = max(moving / self.memory, computing / self.compute)
        other = min(moving / self.memory, computing / self.compute)
        joined: float = longest * (1 + (other / longest) ** self.bend) ** (1 / self.bend)
        return products * self.launch * 1e-6 + joined


MATRIX = MatrixRates(memory=0.87, compute=0.74, launch=4.5, bend=4)

MATRIX_MEASURED: Mapping[tuple[int, int], float] = {
    (1, 15): 15.26, (1, 31): 15.40, (1, 63): 16.03, (8, 15): 16.83, (8, 31): 21.91, (8, 63): 40.33,
}  # fmt: skip
"""(batch, nodes): milliseconds a step of all dense products (nvjet, and the reductions of their splits) of both models."""

KERNELS: Mapping[str, Mapping[int, Rate]] = {
    "conv_tree": {16: Rate(3.3, 0.77), 32: Rate(3.0, 0.53), 64: Rate(2.3, 0.45)},
    "solve_tree": {16: Rate(5.7, 0.174), 32: Rate(8.6, 0.212), 64: Rate(26.0, 0.132)},
    "apply_tree": {16: Rate(4.0, 0.49), 32: Rate(4.8, 0.298), 64: Rate(3.0, 0.226)},
    "gated_norm": {16: Rate(1.5, 0.85), 32: Rate(1.4, 0.78), 64: Rate(1.2, 0.735)},
    "attention, splits": {16: Rate(15.4, 0.50), 32: Rate(6.7, 0.242), 64: Rate(6.0, 0.224)},
    "attention, combine": {16: Rate(2.5, 1.0), 32: Rate(2.2, 1.0), 64: Rate(0.0, 0.64)},
    "commit_tree": {16: Rate(12.6, 0.55), 32: Rate(12.6, 0.55), 64: Rate(12.6, 0.55)},
    "topk, chunks": {16: Rate(4.9, 0.42), 32: Rate(4.5, 0.28), 64: Rate(4.3, 0.27)},
    "topk, merge": {16: Rate(3.5, 0.25), 32: Rate(5.3, 0.11), 64: Rate(5.4, 0.11)},
    "build_trees": {16: Rate(10.0, 1.0), 32: Rate(19.0, 1.0), 64: Rate(37.0, 1.0)},
}
"""Of our kernels, by the rows of the tile that holds a tree. The commit's is of a path of six rows."""
SMALL = Rate(2.0, 1.0)
"""Of those that move next to nothing: rows, compaction, walk, gather."""

STOCK_DELTA = Rate(1.5, 0.80)
"""Stock's recurrence reads a state and writes one for every row; its microseconds are those of a row in a layer, one after
the other: 1.83 ms at batch 1 and 6.53 at batch 8, 16 rows.
"""
STOCK_ATTENTION = Rate(8.8, 0.91)
"""FlashAttention 3 on the target's layers; three launches each."""
DRAFTER_ATTENTION = Rate(5.3, 0.67)
"""The drafter's, whichever arm; three launches a layer."""
ELEMENTWISE = Rate(2.1, 0.55)
"""Norms, activations, gates, caches, sampler, bookkeeping."""
WIDE_LAUNCHES, NARROW_LAUNCHES = 11, 3
"""Of stock's Gated DeltaNet layer beside its products and the recurrence; it copies more above 8 rows a request."""
WIDE_CHANNELS, NARROW_CHANNELS = 7, 3
"""How often a row's convolution channels are moved by these."""
SAMPLER_LAUNCHES = 65
HOST = 0.45
"""Milliseconds of a step in which no kernel runs: the time between windows' steps and the sum of a profiled step's kernels."""


@dataclass(frozen=True)
class Cell:
    """Median milliseconds of a step at 4096 tokens of context; `forced` with six tokens a step, `free` with one."""

    arm: str
    batch: int
    free: float
    forced: float | None = None

    @property
    def ms(self) -> float:
        return self.free if self.forced is None else self.forced


MEASURED = (
    Cell("ar", 1, 15.26), Cell("ar", 8, 16.79),
    Cell("chain:7", 1, 18.50), Cell("chain:7", 8, 23.06),
    Cell("chain:15", 1, 20.41, 20.47), Cell("chain:15", 8, 28.07, 27.97),
    Cell("spine:15", 1, 18.05, 18.26), Cell("spine:15", 8, 22.47, 23.14),
    Cell("tree:15", 1, 18.08, 18.37), Cell("tree:15", 8, 22.68, 22.95),
    Cell("tree:31", 1, 18.33, 18.39), Cell("tree:31", 8, 31.83, 32.11),
    Cell("tree:63", 1, 20.33, 20.45), Cell("tree:63", 8, 57.59, 58.21),
)  # fmt: skip
"""Whole steps; `ar` and `chain:7` of another day, and nothing is fitted to them."""
