"""The runner's one change: the speculator is the tree's."""

from __future__ import annotations

from typing import Any

import torch

from ddtree_ext.engine.speculator import TreeSpeculator


class TreeRunnerMixin:
    """Mixed into vLLM's V2 runner [vllm/v1/worker/gpu/model_runner.py]."""

    speculator: Any
    model_state: Any

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)  # type: ignore[call-arg]
        self.speculator = TreeSpeculator(vllm_config, device)
