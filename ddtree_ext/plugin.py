"""vLLM's general plugin `ddtree`: loaded in every process of a server (API, engine core, workers).

Kept trivial on purpose: vLLM only logs an ImportError of a plugin module, while an error raised inside the function is fatal, and
a tree that is silently absent is the one failure nobody must meet. All overrides are made in the worker (engine/activation.py),
so a server without `--worker-cls` of ours is stock vLLM.
"""

from __future__ import annotations


def register() -> None:
    """Entry point `vllm.general_plugins`: names the attention backend and exposes the tree's counters on /metrics."""
    from ddtree_ext.engine.metrics import expose_counters
    from ddtree_ext.engine.registration import register_attention_backend

    register_attention_backend()
    expose_counters()
