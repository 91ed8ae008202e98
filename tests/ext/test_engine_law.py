"""What a verify step computes and draws, against plain vLLM with the extension absent."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from tests.ext.engine import arms
from tests.ext.engine.job import Answer, Ask, Job, run, start
from tests.pairs.prompts import PROMPTS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

SAMPLES = 1600 if arms.FULL else 320
TOLERANCE = {"float32": 2e-3, "bfloat16": 0.2}
"""Largest difference of a log-probability above -6. vLLM's CPU build runs Gated DeltaNet in bfloat16 only."""


def root_path(record: dict[str, list[int]], row: int) -> list[int]:
    """Tokens from below the root to `row`."""
    path: list[int] = []
    while row > 0:
        path.append(record["tokens"][row])
        row = record["parents"][row]
    return path[::-1]


Row = tuple[dict[str, Any], int]


@dataclass(frozen=True)
class RowsAlone:
    """Rows of verify steps, (step's record, row), and for each the scores of plain decoding after the row's own path."""

    rows: list[Row]
    scores: list[dict[str, float]]
    off_spine: float  # nodes beside the spine that were accepted


def rows_alone(pair: str, dtype: str) -> RowsAlone:
    """Runs trees, then every third row's path of every third step as a prompt of its own, the extension absent."""
    engine = {"dtype": dtype, "max_logprobs": -1}
    asks = tuple(Ask(prompt, 12) for prompt in PROMPTS[30:34])
    answer = run(Job(pair, "tree", (asks,), tokens=20, engine=engine, record_rows=True))
    recorded = answer.rows
    assert len(recorded) > 8
    rows = [(record, row) for record in recorded[::3] for row in range(0, len(record["tokens"]), 3)]
    alone = [Ask(record["prefix"] + root_path(record, row), 1, 0, {"logprobs": -1}) for record, row in rows]
    scores = run(Job(pair, "plain", (tuple(alone),), engine=engine)).scores[0]
    return RowsAlone(rows, scores, answer.counted("accepted_off_spine", [0]))


@cache
def started_rows(pair: str, dtype: str) -> Future[RowsAlone]:
    return start(rows_alone, pair, dtype)


@dataclass(frozen=True)
class Draws:
    """What is sampled: the tokens after a prompt's first, which come from verify steps; the first is the prompt's own."""

    temperature: float
    prompt: str
    tokens: int

    def ask(self, seed: int) -> Ask:
        return Ask(self.prompt, self.tokens + 2, 0, {"temperature": self.temperature, "seed": seed})

    def of(self, answer: Answer) -> list[tuple[int, ...]]:
        return [tuple(islice(tokens, 1, 1 + self.tokens)) for tokens in answer.tokens[0]]

    def __str__(self) -> str:
        return f"T={self.temperature}"


# The colder, the more tokens it takes until a sample has outcomes enough to tell two laws apart.
WARM = Draws(1.0, PROMPTS[40], 2)
COLD, HOT = Draws(0.5, PROMPTS[3], 6), Draws(1.5, PROMPTS[3], 2)


@cache
def started_samples(draws: Draws) -> tuple[Future[Answer], Future[Answer]]:
    """One request many times with other seeds in each arm: by trees, and plain."""

    def asks(first_seed: int) -> tuple[Ask, ...]:
        return tuple(draws.ask(first_seed + i) for i in range(SAMPLES))

    engine = {"max_num_seqs": 32}
    trees = start(run, Job("dense", "tree", (asks(10_000),), tokens=12, engine=engine))
    return trees, start(run, Job("dense", "plain", (asks(90_000),), engine=engine))


@pytest.fixture(scope="module", autouse=True)
def engines(request: pytest.FixtureRequest) -> None:
    """Begins what the chosen tests wait for, so that no processor is idle."""
    for item in request.session.items:
        if item.module is request.module:
            asked = item.callspec.params
            _ = started_rows(**asked) if "pair" in asked else started_samples(**asked)


@pytest.mark.parametrize(
    ("pair", "dtype"),
    [
        ("dense", "float32"),
        ("hybrid", "bfloat16"),
        pytest.param("hybrid128", "bfloat16", marks=pytest.mark.full),
    ],
)
def test_every_rows_logits_are_those_of_its_path_run_alone(pair: str, dtype: str) -> None:
    compared = started_rows(pair, dtype).result()
    beside = [row for record, row in compared.rows if row != len(root_path(record, row))]
    assert len(beside) > 5, "no row beside the spine among them"
    assert compared.off_spine > 0
    for (record, row), scores in zip(compared.rows, compared.scores, strict=True):
        ours = torch.tensor(record["logits"][row]).log_softmax(0)
        theirs = torch.tensor([scores[str(token)] for token in range(len(ours))])
        likely = theirs > -6
        assert (ours - theirs)[likely].abs().max() < TOLERANCE[dtype], (record["prefix"], row)


def variation(a: list[tuple[int, ...]], b: list[tuple[int, ...]]) -> float:
    """Total variation of two samples' frequencies."""
    left, right = Counter(a), Counter(b)
    return 0.5 * sum(abs(left[x] / len(a) - right[x] / len(b)) for x in left.keys() | right.keys())


@pytest.mark.parametrize(
    "draws", [WARM, *(pytest.param(draws, marks=pytest.mark.full) for draws in (COLD, HOT))], ids=str
)
def test_samples_of_trees_are_plain_samples(draws: Draws) -> None:
    """Other seeds in each arm; the total variation is inside what two samples of one law show in 999 of 1000 shuffles."""
    trees, plain = (answer.result() for answer in started_samples(draws))
    assert trees.counted("accepted_off_spine", [0]) > 0
    ours, theirs = draws.of(trees), draws.of(plain)
    assert len(set(theirs)) > 5, "a law with so few outcomes says nothing"
    rng, pooled = np.random.default_rng(0), ours + theirs
    shuffled = []
    for _ in range(1000):
        order = rng.permutation(len(pooled))
        shuffled.append(variation([pooled[i] for i in order[:SAMPLES]], [pooled[i] for i in order[SAMPLES:]]))
    assert variation(ours, theirs) <= np.quantile(shuffled, 0.999)
