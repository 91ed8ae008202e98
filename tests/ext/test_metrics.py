"""The tree's counters on their way from a worker to /metrics."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import prometheus_client
import pytest
import torch

from ddtree_ext.engine import metrics
from ddtree_ext.engine.counters import NODES, StepCounters
from ddtree_ext.engine.step import VerifyStep

REPO = Path(__file__).resolve().parents[2]
LEAVING = """
import sys, time
from pathlib import Path
import torch
from ddtree_ext.engine import metrics
metrics.FLUSH_SECONDS = 0.0
metrics.CounterFlusher(torch.zeros(75, dtype=torch.int64), Path(sys.argv[1]))
time.sleep(0.05)
"""


def counted(trees: int, nodes: int, off_spine: int, by_node: dict[int, int], bins: list[int]) -> list[int]:
    """Totals as a worker has them."""
    return [trees, nodes, off_spine, *(by_node.get(node, 0) for node in range(NODES)), *bins]


def values(totals: list[int]) -> dict[str, float]:
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in metrics.families(totals)
        for sample in family.samples
    }


@pytest.mark.timeout(120)
def test_a_process_that_is_counting_ends_cleanly(tmp_path: Path) -> None:
    """A thread left inside torch while the interpreter is taken down aborts the process, which systemd takes for a crash."""
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", LEAVING, str(tmp_path)], cwd=REPO, capture_output=True, check=False
        )
        assert ended.returncode == 0, ended.stderr.decode()[-500:]


def test_what_a_worker_counted_is_what_the_api_server_shows(tmp_path: Path) -> None:
    totals = torch.zeros(3 + NODES + 4, dtype=torch.int64)
    flusher = metrics.CounterFlusher(totals, tmp_path)
    try:
        totals += torch.tensor(counted(6, 40, 2, {1: 5, 9: 2}, [1, 2, 0, 3]))
        flusher.flush()
        shown = {sample.name: sample.value for f in metrics.TreeCollector(tmp_path).collect() for sample in f.samples}
    finally:
        flusher.close()
    assert shown["vllm:ddtree_trees_total"] == 6
    assert shown["vllm:ddtree_nodes_total"] == 40
    assert shown["vllm:ddtree_accepted_off_spine_total"] == 2


def test_a_scrape_in_the_middle_of_the_first_flush_shows_nothing_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the totals would be taken for the totals of a narrower drafter, or for none."""
    totals = torch.tensor(counted(6, 40, 2, {1: 5, 9: 2}, [1, 2, 0, 3]))
    flusher = metrics.CounterFlusher(torch.zeros_like(totals), tmp_path)
    flusher.close()
    seen: list[int] = []
    write = flusher._file.write_value

    def scraped(*args: object) -> None:
        write(*args)
        seen.append(len(metrics.TreeCollector(tmp_path)._sum()))

    monkeypatch.setattr(flusher._file, "write_value", scraped)
    flusher._totals.copy_(totals)
    flusher.flush()
    assert seen == [0] * (len(totals) - 1) + [len(totals)]


@pytest.mark.parametrize("child", [False, True], ids=["another server's", "its own server's"])
def test_whose_folder_a_process_finds_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: bool
) -> None:
    """A worker counts into its server's; a server that was started from another one's process has a folder of its own."""
    registered: list[object] = []
    monkeypatch.setattr(prometheus_client.REGISTRY, "register", registered.append)
    monkeypatch.setattr(metrics, "_exposed", [])
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object() if child else None)
    monkeypatch.setattr(atexit, "register", lambda _: None)
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: str(tmp_path / "own"))
    monkeypatch.setenv(metrics.FOLDER, str(tmp_path / "found"))
    metrics.expose_counters()
    metrics.expose_counters()
    assert len(registered) == (not child)
    assert os.environ[metrics.FOLDER] == str(tmp_path / ("found" if child else "own"))


def test_nothing_is_read_before_the_warm_up_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA call of the counting thread, made while a graph is captured, invalidates the graph and ends the start."""
    happened: list[str] = []
    monkeypatch.setattr(metrics, "start_flushing", lambda totals: happened.append(f"counting {totals}"))

    class Stock:
        model_runner = SimpleNamespace(model_state=SimpleNamespace(counters=SimpleNamespace(totals="these")))
        is_driver_worker = True

        def compile_or_warm_up_model(self) -> str:
            happened.append("graphs captured")
            return "times"

    class Worker(metrics.CountersOfWorker, Stock):
        pass

    assert Worker().compile_or_warm_up_model() == "times"
    assert happened == ["graphs captured", "counting these"]


def test_families_of_known_totals() -> None:
    """Six steps: one accepted nothing, two one node, three all three nodes."""
    shown = values(counted(6, 40, 2, {1: 5, 2: 3, 5: 2, 9: 1}, [1, 2, 0, 3]))
    assert shown["vllm:ddtree_accepted_total"] == 11
    assert [shown[f"vllm:ddtree_accepted_per_depth_total[{depth}]"] for depth in (1, 2, 3)] == [5, 3, 3]
    assert [shown[f"vllm:ddtree_accepted_per_step_bucket[{le}]"] for le in ("0.0", "1.0", "2.0", "3.0", "+Inf")] == [
        1,
        3,
        3,
        6,
        6,
    ]
    assert shown["vllm:ddtree_accepted_per_step_count"] == 6
    assert [shown[f"vllm:ddtree_accepted_per_node_total[{node}]"] for node in (1, 2, 3, 5, 9, 63)] == [5, 3, 0, 2, 1, 0]


def test_what_a_smaller_budget_would_have_accepted_of_the_same_steps_is_the_sum_of_its_first_nodes() -> None:
    """Three trees of 5 and one of none; accepted: rows 1 2 5; rows 1; none; and a request without a tree."""
    step = VerifyStep.allocate(slots=4, max_tokens=32, budget=5, device=torch.device("cpu"))
    step.num_reqs = 4
    step.rows.tree_len[:4] = torch.tensor([6, 6, 6, 1])
    step.path[0, 1:4] = torch.tensor([1, 2, 5])
    step.path[1, 1] = 1
    counters = StepCounters(width=3, device=torch.device("cpu"))
    counters.add(step, torch.tensor([4, 2, 1, 1], dtype=torch.int32))
    shown = values(counters.totals.tolist())
    assert shown["vllm:ddtree_trees_total"] == 3
    assert shown["vllm:ddtree_accepted_off_spine_total"] == 1
    by_node = [shown[f"vllm:ddtree_accepted_per_node_total[{node}]"] for node in range(1, 64)]
    assert by_node == [2, 1, 0, 0, 1, *([0] * 58)]
    assert sum(by_node) == shown["vllm:ddtree_accepted_total"] == 4


def test_of_a_tensor_parallel_group_one_rank_counts_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them verify the same trees."""
    counting: list[object] = []
    monkeypatch.setattr(metrics, "start_flushing", counting.append)

    class Stock:
        model_runner = SimpleNamespace(model_state=SimpleNamespace(counters=SimpleNamespace(totals="these")))

        def __init__(self, rank: int) -> None:
            self.is_driver_worker = rank % 2 == 0

        def compile_or_warm_up_model(self) -> None: ...

    class Worker(metrics.CountersOfWorker, Stock):
        pass

    for rank in range(2):
        Worker(rank).compile_or_warm_up_model()
    assert counting == ["these"]
