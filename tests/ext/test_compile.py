"""Every kernel compiles for the A6000 (sm_86) and the H200 (sm_90), within their shared memory; no GPU is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED_MEMORY = {86: 99 << 10, 90: 227 << 10}
"""What a block may use."""

KERNELS = {
    "_build_kernel",
    "_rows_kernel",
    "_walk_kernel",
    "_partial_kernel",
    "_combine_kernel",
    "_compact_kernel",
    "_gather_kernel",
    "_chunk_kernel",
    "_merge_kernel",
}

Line = dict[str, str | int]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    """Compiled in a process of its own: here Triton was imported as an interpreter."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "PYTHONPATH": str(ROOT)}
    script = str(Path(__file__).with_name("compile_kernels.py"))
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_is_compiled_for_both_architectures(lines: list[Line]) -> None:
    assert {(line["kernel"], line["arch"]) for line in lines} == {(k, a) for k in KERNELS for a in (86, 90)}


def test_shared_memory_suffices(lines: list[Line]) -> None:
    assert [line for line in lines if int(line["shared"]) > SHARED_MEMORY[int(line["arch"])]] == []


def test_no_kernel_lives_on_the_stack(lines: list[Line]) -> None:
    """A few spilled registers are harmless; accumulators that spill are not."""
    assert [line for line in lines if int(line["stack"]) > 256] == []
