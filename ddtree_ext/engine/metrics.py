"""The tree's counters on vLLM's /metrics: written by the workers, summed where the API server is scraped.

A worker is another process than the API server. Each worker flushes its device totals into a memory-mapped file of
prometheus_client's own multiprocess format; the collector sums the files. The folder's name travels in the environment,
which every child process inherits.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = "DDTREE_COUNTERS_DIR"
FLUSH_SECONDS = 0.5
_PREFIX = "vllm:ddtree_"
_flushers: list[CounterFlusher] = []
_exposed: list[Path] = []


class CounterFlusher:
    """Copies device totals to the file of this process: every FLUSH_SECONDS from a thread, outside the decode loop."""

    def __init__(self, totals: Any, folder: Path) -> None:
        from prometheus_client.mmap_dict import MmapedDict

        self._totals, self._last = totals, [0] * int(totals.numel())
        self._file = MmapedDict(str(folder / f"{os.getpid()}.db"))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddtree-counters", daemon=True)
        self._thread.start()
        _flushers.append(self)
        atexit.register(self.close)

    def close(self) -> None:
        """Ends the thread: one that is inside torch while the interpreter is taken down aborts the process."""
        self._stop.set()
        self._thread.join()

    def flush(self) -> None:
        """Brings the file up to date."""
        with self._lock:
            now = [int(value) for value in self._totals.cpu()]
            if now == self._last:
                return
            for index in reversed(range(len(now))):  # the first one last: with it, all are there (see `_sum`)
                self._file.write_value(str(index), float(now[index]), 0.0)
            self._last = now

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_SECONDS):
            self.flush()


def start_flushing(totals: Any) -> None:
    """In a worker: makes `totals`, as engine/counters.py describes them, visible to the API server."""
    if folder := os.environ.get(FOLDER):
        CounterFlusher(totals, Path(folder))


class CountersOfWorker:
    """Mixed into a vLLM worker: its counters are visible from the end of the warm-up on.

    Not before: a CUDA call of another thread invalidates a graph that is being captured.
    """

    model_runner: Any
    is_driver_worker: bool

    def compile_or_warm_up_model(self) -> Any:
        """Stock's answer, the seconds spent compiling; the driver's counters are flushed from here on."""
        times = super().compile_or_warm_up_model()  # type: ignore[misc]
        if self.is_driver_worker:  # the other ranks of its tensor parallel group verify the same trees
            start_flushing(self.model_runner.model_state.counters.totals)
        return times


class TreeCollector:
    """prometheus_client collector over the folder's files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Any]:
        """Metric families of all workers' totals together; none before a worker has counted."""
        for flusher in _flushers:
            flusher.flush()
        totals = self._sum()
        return families(totals) if totals else ()

    def _sum(self) -> list[int]:
        from prometheus_client.mmap_dict import MmapedDict

        totals: dict[int, int] = {}
        for path in sorted(self._folder.glob("*.db")):
            found = {int(key): int(value) for key, value, _, _ in MmapedDict.read_all_values_from_file(str(path))}
            for key, value in found.items() if 0 in found else ():  # else its worker is writing them for the first time
                totals[key] = totals.get(key, 0) + value
        return [totals[index] for index in sorted(totals)]


def families(totals: list[int]) -> list[Any]:
    """Metric families of the totals that engine/counters.py describes."""
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    from ddtree_ext.engine.counters import NODES, SUMS

    (trees, nodes, off_spine), by_node, bins = totals[:SUMS], totals[SUMS : SUMS + NODES], totals[SUMS + NODES :]
    accepted = sum(count * value for value, count in enumerate(bins))
    reached = [sum(bins[depth:]) for depth in range(1, len(bins))]
    per_depth = CounterMetricFamily(
        _PREFIX + "accepted_per_depth", "Request steps that accepted a node at this depth", labels=["depth"]
    )
    for depth, count in enumerate(reached, start=1):
        per_depth.add_metric([str(depth)], count)
    per_node = CounterMetricFamily(
        _PREFIX + "accepted_per_node",
        "Request steps that accepted this node, numbered as it came into the tree",
        labels=["node"],
    )
    for node, count in enumerate(by_node[1:], start=1):
        per_node.add_metric([str(node)], count)
    cumulative = [sum(bins[: value + 1]) for value in range(len(bins))]
    buckets = [(f"{value:.1f}", count) for value, count in enumerate(cumulative)] + [("+Inf", sum(bins))]
    return [
        CounterMetricFamily(_PREFIX + "trees", "Trees verified, one per request and step", value=trees),
        CounterMetricFamily(_PREFIX + "nodes", "Tree nodes verified, roots not counted", value=nodes),
        CounterMetricFamily(_PREFIX + "accepted", "Tree nodes accepted", value=accepted),
        CounterMetricFamily(
            _PREFIX + "accepted_off_spine", "Tree nodes accepted beside the drafter's top-1 chain", value=off_spine
        ),
        per_depth,
        per_node,
        HistogramMetricFamily(
            _PREFIX + "accepted_per_step", "Nodes accepted per request and step", buckets=buckets, sum_value=accepted
        ),
    ]


def expose_counters() -> None:
    """In the first process of a server: makes the folder and registers the collector. Idempotent; children only inherit.

    A name in the environment of a process that multiprocessing did not make is another server's, whose child or shell this is.
    """
    child = multiprocessing.parent_process() is not None
    if FOLDER in os.environ and (child or Path(os.environ[FOLDER]) in _exposed):
        return
    from prometheus_client import REGISTRY

    folder = Path(tempfile.mkdtemp(prefix="ddtree-counters-"))
    os.environ[FOLDER] = str(folder)
    _exposed.append(folder)
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    REGISTRY.register(TreeCollector(folder))
