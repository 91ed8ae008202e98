"""Top-k and top-p sampling with Triton in its interpreter, on vLLM 0.32.0's CPU build.

The defect: stock takes its Triton kernel wherever Triton is present, and that kernel does not run interpreted (a Python
int where it expects a tensor): the first request with top_k or top_p ends the engine.
The mend: the PyTorch function that stock itself takes on a CPU without Triton.
"""

from __future__ import annotations

from types import ModuleType

from torch import Tensor


def mend(sampler: ModuleType) -> None:
    """Replace ``apply_top_k_top_p`` of ``vllm.v1.sample.ops.topk_topp_sampler``."""

    def apply_top_k_top_p(logits: Tensor, k: Tensor | None, p: Tensor | None) -> Tensor:
        """``logits`` [rows, vocabulary], ``k`` and ``p`` [rows] or None; tokens outside become -inf."""
        if k is None and p is None:
            return logits
        return sampler.apply_top_k_top_p_pytorch(logits, k, p, allow_cpu_sync=True)

    sampler.apply_top_k_top_p = apply_top_k_top_p
