"""The Gated DeltaNet kernels compile for the A6000 (sm_86) and the H200 (sm_90), within their shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SHARED_MEMORY = 99 << 10  # what a block may use on sm_86; sm_90 has more
KERNELS = {
    "conv_tree_kernel",
    "solve_tree_kernel",
    "solve_group_kernel",
    "apply_tree_kernel",
    "gated_norm_kernel",
    "commit_tree_kernel",
}

Line = dict[str, str | int]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    """Compiled in a process of its own: here Triton was imported as an interpreter."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    env |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "PYTHONPATH": path}
    script = str(Path(__file__).with_name("compile_gdn.py"))
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_is_compiled_for_both_architectures(lines: list[Line]) -> None:
    assert {(line["kernel"], line["arch"]) for line in lines} == {(k, a) for k in KERNELS for a in (86, 90)}


def test_shared_memory_suffices(lines: list[Line]) -> None:
    assert [line for line in lines if int(line["shared"]) > SHARED_MEMORY] == []


def test_nothing_is_spilled(lines: list[Line]) -> None:
    """Products are held in registers: a kernel that keeps them on the stack loses what it is for."""
    assert [line for line in lines if int(line["stack"]) > 0] == []
