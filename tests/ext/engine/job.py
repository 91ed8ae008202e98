"""What one engine process is asked to do, and what it answers: plain data, exchanged as JSON files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.pairs.engine import alone

REPO = Path(__file__).resolve().parents[3]
PAIRS = Path(os.environ.get("DDTREE_PAIRS", REPO / "build" / "pairs"))
DEVICE = os.environ.get("DDTREE_TEST_DEVICE", "cpu")
"""cpu: vLLM's CPU build with interpreted kernels. cuda: a GPU, compiled kernels, CUDA graphs."""
LIMIT = float(os.environ.get("DDTREE_TEST_LIMIT", "10800"))
"""Seconds for one engine; one that takes longer says where it is, and ends."""


Answered = TypeVar("Answered")


@dataclass(frozen=True)
class Ask:
    """One request, text or token ids: it joins when `arrives` engine steps have been made."""

    prompt: str | list[int]
    max_tokens: int = 64
    arrives: int = 0
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One engine: a pair, an arm, and groups of requests that are run one group after the other.

    arm: "plain" (no speculation), "chain" (stock DFlash, `tokens` drafts) or "tree" (`tokens` nodes, `topk` ranks).
    Plain and chain run with the extension absent.
    """

    pair: str
    arm: str
    groups: tuple[tuple[Ask, ...], ...]
    tokens: int = 0
    topk: int = 16
    engine: dict[str, Any] = field(default_factory=dict)
    speculative: dict[str, Any] = field(default_factory=dict)
    record_rows: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """Its process's."""
        chosen = alone(DEVICE, plugins=self.arm == "tree")
        if self.engine.get("tensor_parallel_size", 1) > 1:
            chosen["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # or vLLM's CPU build wants a memory node for every rank
        return chosen


@dataclass(frozen=True)
class Answer:
    """Per group and request: token ids, tokens gained at each engine step, text, logprobs if asked (first token's of all
    tokens too); per group, what it added to the metrics; metrics at the end, of all groups together."""

    tokens: list[list[list[int]]]
    gains: list[list[list[int]]]
    texts: list[list[str]]
    logprobs: list[list[list[float]]]
    scores: list[list[dict[str, float]]]
    counters: list[dict[str, float]]
    metrics: dict[str, Any]
    rows: list[dict[str, Any]]

    def counted(self, name: str, groups: Iterable[int]) -> float:
        """What these groups together added to the counter `vllm:ddtree_NAME_total`."""
        return sum(self.counters[group][f"vllm:ddtree_{name}_total"] for group in groups)


def run(job: Job) -> Answer:
    """Runs the job in a fresh process; raises AssertionError with its output when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        ask, answer = Path(folder) / "job.json", Path(folder) / "answer.json"
        ask.write_text(json.dumps(asdict(job)))
        done = subprocess.run(
            [sys.executable, "-m", "tests.ext.engine.serve", str(ask), str(answer)],
            cwd=REPO,
            env=job.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT + 60,
            check=False,
        )
        assert done.returncode == 0, f"{job.arm} on {job.pair} failed:\n{done.stdout[-4000:]}\n{done.stderr[-12000:]}"
        return Answer(**json.loads(answer.read_text()))


@cache
def _engines() -> ThreadPoolExecutor:
    """As many engines at a time as there are processors: each computes in one thread (see `alone`)."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="engine")


def start(work: Callable[..., Answered], *args: Any) -> Future[Answered]:
    """Begins `work(*args)`, which runs one engine at a time, as soon as a processor is free for it."""
    return _engines().submit(work, *args)


def load(path: Path) -> Job:
    """The job of a file that `run` wrote."""
    raw = json.loads(path.read_text())
    groups = tuple(tuple(Ask(**ask) for ask in group) for group in raw.pop("groups"))
    return Job(groups=groups, **raw)
