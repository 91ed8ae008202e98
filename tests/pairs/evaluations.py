"""Made-up answers of engines, evaluated as real ones are: results in the real schema without an engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pairs import evaluate
from benchmarks.pairs.engine import Answer, Ask, Turn

GROUPS = ((0.0, "code"), (0.0, "maths"), (1.0, "code"), (1.0, "maths"))
LENGTHS = {"chain:7": 3.0, "chain:15": 3.2, "tree:15": 3.2, "tree:31": 4.0, "tree:63": 4.4}
"""Tokens a step, on the average."""


def answer(length: float, prompts: int, groups: int, seed: int) -> Answer:
    """Requests of twenty steps that gain `length` tokens on the average, each prompt alike in every arm."""
    rng = np.random.default_rng(seed)
    gains = [
        [[1, *(1 + rng.binomial(15, (length - 1) / 15, 20)).tolist(), 1] for _ in range(prompts)] for _ in range(groups)
    ]
    tokens = [[[5] * sum(steps) for steps in group] for group in gains]
    counters = {"accepted": 100.0, "accepted_off_spine": 20.0, "trees": 50.0}
    return Answer(tokens, gains, [dict(counters) for _ in range(groups)], {"vllm": "0.32.0", "card": "made up"})


def plan(lengths: Mapping[str, float], prompts: int) -> evaluate.Plan:
    asked = [[[1, 2, 3]] * prompts for _ in GROUPS]
    every = list(range(len(GROUPS)))
    heats = [heat for heat, _ in GROUPS]
    engines = tuple(Ask(arm, "pair", "cpu", asked, heats, 8, 4, [Turn(arm, 4, every)]) for arm in ("ar", *lengths))
    return evaluate.Plan(GROUPS, asked, engines)


def results(lengths: Mapping[str, float] = LENGTHS, prompts: int = 30) -> dict[str, Any]:
    """What evaluation would write of arms with these tokens a step; ar beside them."""
    made = plan(lengths, prompts)
    got = {"ar": answer(1.0, prompts, len(GROUPS), 0)}
    got |= {arm: answer(length, prompts, len(GROUPS), 1) for arm, length in lengths.items()}
    arms = {arm: evaluate.summary(made, found) for arm, found in got.items()}
    return {"pair": "made-up", "arms": arms, "errors": {}, "ratios": evaluate.ratios(made, got)}


def stand_in(lengths: Mapping[str, float], prompts: int) -> Any:
    """In place of engine.answered: turns of `lengths` and ar are answered, others fail."""

    def answered(ask: Ask, folder: Path, limit: float) -> tuple[dict[str, Answer], dict[str, str]]:
        known = {"ar": 1.0, "ar again": 1.0, **lengths}
        found = {t.arm: answer(known[t.arm], prompts, len(ask.groups), 1) for t in ask.turns if t.arm in known}
        return found, {t.arm: "exit code 1: a made-up failure" for t in ask.turns if t.arm not in known}

    return answered
