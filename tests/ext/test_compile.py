"""Every kernel compiles for the A6000 (sm_86) and the H200 (sm_90), attention, which is laid out by a block's shared memory,
for sm_120 too, each within what it was laid out for; no GPU is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LAID_OUT = {"_partial_kernel", "_combine_kernel"}

KERNELS = {
    "_build_kernel",
    "_rows_kernel",
    "_walk_kernel",
    "_partial_kernel",
    "_combine_kernel",
    "_compact_kernel",
    "_gather_kernel",
    "_slots_kernel",
    "_count_kernel",
    "_chunk_kernel",
    "_merge_kernel",
    "_narrow_kernel",
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
    both = {(kernel, arch) for kernel in KERNELS for arch in (86, 90)}
    assert {(line["kernel"], line["arch"]) for line in lines} == both | {(kernel, 120) for kernel in LAID_OUT}


def test_each_layout_is_within_the_shared_memory_that_it_was_chosen_for(lines: list[Line]) -> None:
    assert {(line["arch"], line["room"]) for line in lines} == {(86, 99 << 10), (90, 227 << 10), (120, 99 << 10)}
    assert [line for line in lines if int(line["shared"]) > int(line["room"])] == []


def test_no_kernel_lives_on_the_stack(lines: list[Line]) -> None:
    """A few spilled registers are harmless; accumulators that spill are not."""
    assert [line for line in lines if int(line["stack"]) > 256] == []
