"""Triton's kernels run in its interpreter here, on the CPU. Triton reads the variable at its first import.

With DDTREE_TEST_DEVICE=cuda the tests of the kernels (not of the engine) run compiled, on a GPU.
"""

from __future__ import annotations

import os

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_HOST_IP="127.0.0.1",
)
if os.environ.setdefault("DDTREE_TEST_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch

DEVICE = os.environ["DDTREE_TEST_DEVICE"]

torch.set_num_threads(1)
torch.set_default_device(DEVICE)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(20)
