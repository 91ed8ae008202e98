"""Triton's kernels run in its interpreter here, on the CPU. Triton reads the variable at its first import."""

from __future__ import annotations

import os

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_HOST_IP="127.0.0.1",
    TRITON_INTERPRET="1",
)

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(20)
