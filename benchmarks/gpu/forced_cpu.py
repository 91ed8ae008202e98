"""The workers of benchmarks.gpu.forced on a CPU, to see that they run. Apart: a GPU's machine need not load vLLM's CPU worker."""

from __future__ import annotations

from vllm.v1.worker.cpu_worker import CPUWorker

from benchmarks.gpu.forced import ForcedStock, ForcedTree
from ddtree_ext.engine.cpu_worker import DDTreeCPUWorker


class ForcedDDTreeWorker(ForcedTree, DDTreeCPUWorker):
    """The tree's worker."""


class ForcedWorker(ForcedStock, CPUWorker):  # type: ignore[misc]
    """Stock's."""
