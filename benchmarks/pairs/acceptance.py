"""Acceptance out of what engines answered, with confidence intervals over prompts.

The acceptance length is tokens per step of decoding. A request's first step is its prefill and its last one may be cut by
a limit or by the end token, so neither counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
ROUNDS = 2000


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def rounded(self) -> list[float]:
        return [round(self.value, 4), round(self.low, 4), round(self.high, 4)]


def counts(gains: Sequence[Sequence[int]]) -> Floats:
    """[requests, 2]: tokens and steps of each request."""
    kept = [steps[1:-1] for steps in gains]
    return np.array([[sum(steps), len(steps)] for steps in kept], dtype=np.float64).reshape(-1, 2)


def draws(prompts: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Prompts drawn with replacement, [rounds, prompts]: the same for every arm, so that arms are compared prompt by prompt."""
    return np.random.default_rng(seed).integers(prompts, size=(ROUNDS, prompts))


def _ratio(counted: Floats) -> Floats:
    return counted[..., 0].sum(-1) / np.maximum(counted[..., 1].sum(-1), 1)


def _interval(value: float, drawn: Floats) -> Interval:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(value, float(low), float(high))


def acceptance(counted: Floats) -> Interval:
    """Tokens per step over all prompts."""
    return _interval(float(_ratio(counted)), _ratio(counted[draws(len(counted))]))


def ratio(tree: Floats, chain: Floats) -> Interval:
    """Acceptance length of one arm over another's, on the same prompts."""
    at = draws(len(tree))
    return _interval(
        float(_ratio(tree) / max(float(_ratio(chain)), 1e-9)), _ratio(tree[at]) / np.maximum(_ratio(chain[at]), 1e-9)
    )


def by_depth(gains: Sequence[Sequence[int]], width: int) -> list[float]:
    """Share of steps that accepted a token at depth 1, 2, ... width."""
    accepted = np.array([gain - 1 for steps in gains for gain in steps[1:-1]])
    return [round(float((accepted >= depth).mean()), 4) if len(accepted) else 0.0 for depth in range(1, width + 1)]


def agreement(mine: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> tuple[int, list[tuple[int, int]]]:
    """(equal outputs, [(request, where it first differs)]) of greedy outputs."""
    apart = []
    for request, (a, b) in enumerate(zip(mine, reference, strict=True)):
        if list(a) != list(b):
            where = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            apart.append((request, where))
    return len(mine) - len(apart), apart
