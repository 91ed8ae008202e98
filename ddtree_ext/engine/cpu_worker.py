"""`--worker-cls ddtree_ext.engine.cpu_worker.DDTreeCPUWorker`: the same on vLLM's CPU build, through interpreted Triton.

For tests and the staging box; an interpreted run says nothing about speed.
"""

from __future__ import annotations

from vllm.v1.worker.cpu.model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from ddtree_ext.engine.activation import activate
from ddtree_ext.engine.metrics import CountersOfWorker
from ddtree_ext.engine.runner import TreeRunnerMixin


class CPUTreeModelRunner(TreeRunnerMixin, CPUModelRunner):  # type: ignore[misc]
    """The V2 runner on a CPU."""


class DDTreeCPUWorker(CountersOfWorker, CPUWorker):  # type: ignore[misc]
    """CPUWorker builds its runner inline, so ours takes its place right after."""

    def init_device(self) -> None:
        """Raises OptionError or CompatibilityError before a model is loaded."""
        activate(self.vllm_config)
        super().init_device()
        self.model_runner = CPUTreeModelRunner(self.vllm_config, self.device)
