"""What a verify step computes and draws, against plain vLLM with the extension absent."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch

from tests.ext.engine import arms
from tests.ext.engine.job import Answer, Ask, Job, run, start
from tests.pairs.prompts import PROMPTS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

TOLERANCE = {"float32": 2e-3, "bfloat16": 0.2}
"""Largest difference of a log-probability above -6. vLLM's CPU build runs Gated DeltaNet in bfloat16 only."""


def root_path(record: dict[str, list[int]], row: int) -> list[int]:
    """Tokens from below the root to `row`."""
    path: list[int] = []
    while row > 0:
        path.append(record["tokens"][row])
        row = record["parents"][row]
    return path[::-1]


@pytest.mark.parametrize(
    ("pair", "dtype"),
    [
        ("dense", "float32"),
        pytest.param("hybrid", "bfloat16", marks=pytest.mark.full),
        pytest.param("hybrid128", "bfloat16", marks=pytest.mark.full),
    ],
)
def test_every_rows_logits_are_those_of_its_path_run_alone(pair: str, dtype: str) -> None:
    engine = {"dtype": dtype, "max_logprobs": -1}
    asks = tuple(Ask(prompt, 12) for prompt in PROMPTS[30:34])
    recorded = run(Job(pair, "tree", (asks,), tokens=20, engine=engine, record_rows=True), timeout=3000).rows
    assert len(recorded) > 8
    rows = [(record, row) for record in recorded[::3] for row in range(0, len(record["tokens"]), 3)]
    alone = [Ask(record["prefix"] + root_path(record, row), 1, 0, {"logprobs": -1}) for record, row in rows]
    assert sum(row != len(root_path(record, row)) for record, row in rows) > 5, "no row beside the spine among them"
    plain = run(Job(pair, "plain", (tuple(alone),), engine=engine), timeout=3000).scores[0]
    for (record, row), scores in zip(rows, plain, strict=True):
        ours = torch.tensor(record["logits"][row]).log_softmax(0)
        theirs = torch.tensor([scores[str(token)] for token in range(len(ours))])
        likely = theirs > -6
        assert (ours - theirs)[likely].abs().max() < TOLERANCE[dtype], (record["prefix"], row)


def draws(answer: Answer) -> list[tuple[int, ...]]:
    """The second and third token of every request: both come from verify steps, the first from the prompt's."""
    return [tuple(islice(tokens, 1, 3)) for tokens in answer.tokens[0]]


def variation(a: list[tuple[int, ...]], b: list[tuple[int, ...]]) -> float:
    """Total variation of two samples' frequencies."""
    left, right = Counter(a), Counter(b)
    return 0.5 * sum(abs(left[x] / len(a) - right[x] / len(b)) for x in left.keys() | right.keys())


def test_samples_of_trees_are_plain_samples() -> None:
    """Other seeds in each arm; the total variation is inside what two samples of one law show in 999 of 1000 shuffles."""
    samples = 1600 if arms.FULL else 320
    heat = {"temperature": 1.0}

    def asks(first_seed: int) -> tuple[Ask, ...]:
        return tuple(Ask(PROMPTS[40], 4, 0, heat | {"seed": first_seed + i}) for i in range(samples))

    engine = {"max_num_seqs": 32}
    started = (
        start(Job("dense", "tree", (asks(10_000),), tokens=12, engine=engine), timeout=3 * 3600),
        start(Job("dense", "plain", (asks(90_000),), engine=engine), timeout=3 * 3600),
    )
    trees, plain = (answer.result() for answer in started)
    assert trees.metrics["vllm:ddtree_accepted_off_spine_total"] > 0
    ours, theirs = draws(trees), draws(plain)
    assert len(set(theirs)) > 5, "a law with so few outcomes says nothing"
    rng, pooled = np.random.default_rng(0), ours + theirs
    shuffled = []
    for _ in range(1000):
        order = rng.permutation(len(pooled))
        shuffled.append(variation([pooled[i] for i in order[:samples]], [pooled[i] for i in order[samples:]]))
    assert variation(ours, theirs) <= np.quantile(shuffled, 0.999)
