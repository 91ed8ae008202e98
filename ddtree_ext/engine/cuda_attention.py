"""`--attention-backend CUSTOM` on CUDA: FlashAttention underneath, the tree's kernel for verify rows."""

from __future__ import annotations

from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl

from ddtree_ext.engine.attention import TreeAttentionMixin


class CUDATreeAttentionImpl(TreeAttentionMixin, FlashAttentionImpl):  # type: ignore[misc]
    """Prefill rows by FlashAttention, tree rows by ours."""


class CUDATreeAttentionBackend(FlashAttentionBackend):  # type: ignore[misc]
    """FlashAttention's KV layout and metadata."""

    @staticmethod
    def get_name() -> str:
        """What --attention-backend calls it: vLLM's one name for backends from outside."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[CUDATreeAttentionImpl]:
        """One is made for each attention layer; it refuses variants that the tree's kernel does not compute."""
        return CUDATreeAttentionImpl
