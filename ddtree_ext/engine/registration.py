"""What has to be known in every process before a model is loaded: where the attention backend lives."""

from __future__ import annotations

import functools
from typing import Any

from ddtree_ext.engine.compat import check_version


def register_attention_backend() -> None:
    """Puts the tree's attention under `--attention-backend CUSTOM`; idempotent.

    The CPU platform answers CPU_ATTN whatever is asked (vllm/platforms/cpu.py, get_attn_backend_cls), so there that one
    classmethod is wrapped to honour CUSTOM. It is the only function of vLLM that is patched, and only on CPU.
    """
    check_version()
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    name = "CPUTreeAttentionBackend" if current_platform.is_cpu() else "CUDATreeAttentionBackend"
    module = "cpu_attention" if current_platform.is_cpu() else "cuda_attention"
    register_backend(AttentionBackendEnum.CUSTOM, f"ddtree_ext.engine.{module}.{name}")
    if current_platform.is_cpu():
        _honour_custom_backend(type(current_platform))


def _honour_custom_backend(platform: Any) -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    stock = platform.get_attn_backend_cls.__func__
    if getattr(stock, "honours_custom", False):
        return

    @functools.wraps(stock)
    def get_attn_backend_cls(cls: Any, selected_backend: Any, *args: Any, **kwargs: Any) -> str:
        if selected_backend == AttentionBackendEnum.CUSTOM:
            return str(AttentionBackendEnum.CUSTOM.get_path())
        return str(stock(cls, selected_backend, *args, **kwargs))

    get_attn_backend_cls.honours_custom = True  # type: ignore[attr-defined]
    platform.get_attn_backend_cls = classmethod(get_attn_backend_cls)
