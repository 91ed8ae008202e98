"""`--attention-backend CUSTOM` on a CPU: Triton's interpreter runs the kernels of the GPU. For tests, not for speed."""

from __future__ import annotations

from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend, TritonAttentionImpl

from ddtree_ext.engine.attention import TreeAttentionMixin


class CPUTreeAttentionImpl(TreeAttentionMixin, TritonAttentionImpl):  # type: ignore[misc]
    """Prefill rows by vLLM's unified Triton attention, tree rows by ours."""


class CPUTreeAttentionBackend(TritonAttentionBackend):  # type: ignore[misc]
    """Triton's KV layout, not CPU_ATTN's packed one, so that kernels and glue are those of the GPU."""

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[CPUTreeAttentionImpl]:
        return CPUTreeAttentionImpl
