"""`--worker-cls ddtree_ext.engine.worker.DDTreeWorker`: vLLM's GPU worker with the tree's model runner.

Naming the class on the command line is what switches the tree on; without the extension installed the server does not start.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from ddtree_ext.engine.activation import activate
from ddtree_ext.engine.metrics import CountersOfWorker
from ddtree_ext.engine.runner import TreeRunnerMixin


class TreeModelRunner(TreeRunnerMixin, GPUModelRunner):  # type: ignore[misc]
    """The V2 runner on CUDA."""


class DDTreeWorker(CountersOfWorker, Worker):  # type: ignore[misc]
    """Stock worker; the runner is ours."""

    def _make_model_runner(self) -> Any:
        activate(self.vllm_config)
        return TreeModelRunner(self.vllm_config, self.device)
