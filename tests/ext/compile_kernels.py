"""Compiles, without a GPU, exactly what the kernels' Python functions would launch. Run as a script; prints JSON lines.

Each launch is caught before it reaches a driver and compiled to a cubin for every architecture by Triton's own ptxas. A
line holds case, kernel, arch, shared (bytes of shared memory), room (bytes of it that a block may use there, by which the
layout was chosen), registers and stack (bytes, with spills) per thread.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

from ddtree_ext.core.buffers import TreeBuffers, TreeRows
from ddtree_ext.kernels.attention import tree_attention
from ddtree_ext.kernels.attention_scratch import AttentionScratch, Tiles
from ddtree_ext.kernels.block_tables import BlockTables, state_slots
from ddtree_ext.kernels.build import build_trees
from ddtree_ext.kernels.compact import CompactTable, GroupedCache, compact_kv
from ddtree_ext.kernels.count import count_trees
from ddtree_ext.kernels.gather import RowPointers, gather_rows
from ddtree_ext.kernels.rows import expand_rows
from ddtree_ext.kernels.topk import top_logprobs
from ddtree_ext.kernels.topk_merge import merge_ranks, narrow_chunks
from ddtree_ext.kernels.topk_scratch import TopkScratch
from ddtree_ext.kernels.walk import walk_trees

ARCHS = (86, 90)
ROOM = {86: 99 << 10, 90: 227 << 10, 120: 99 << 10}
"""Bytes of shared memory that a block may use. Only attention is laid out by it."""
OPTIONS = ("num_warps", "num_stages")

PROCESSORS = {86: 84, 90: 132, 120: 188}
"""Of an RTX A6000, of an H200, and of an RTX PRO 6000."""

Case = tuple[str, Callable[[], None], tuple[int, ...]]


def ints(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


def cases() -> Iterator[Case]:
    """The kernels' functions, called with the sizes of a real drafter and target."""
    trees = TreeBuffers.allocate(2, 63, "cpu")
    rows = TreeRows.allocate(2, 128, "cpu")
    one, starts, slots, path = ints(2), ints(3), ints(2, dtype=torch.int64), ints(2, 64)
    draft = torch.zeros(2, 15, 8), ints(2, 15, 8, dtype=torch.int64)
    yield "15 x 8", partial(build_trees, *draft, one, slots, trees), ARCHS
    yield "63 nodes", partial(expand_rows, slots, starts, one, one, path, trees, rows), ARCHS
    tokens = ints(2, 64, dtype=torch.int64)
    yield "63 nodes", partial(walk_trees, tokens[0], tokens[0], starts, slots, one, trees, tokens, one, path), ARCHS
    kinds = (
        (32, torch.bfloat16),
        (64, torch.float16),
        (128, torch.bfloat16),
        (256, torch.bfloat16),
        (256, torch.float32),
    )
    for (size, dtype), arch in product(kinds, ROOM):
        for tiles in Tiles.on(ROOM[arch], PROCESSORS[arch], size, dtype.itemsize, 64 * 6):
            yield attention(size, dtype, arch, tiles, starts, one, rows)
    cache = torch.zeros(4, 2, 784, 4, 256, dtype=torch.bfloat16).unbind(1)
    tables, table = BlockTables.of([path]), CompactTable.of([GroupedCache(0, *cache)])
    yield "784 tokens a block", partial(compact_kv, table, tables, one, starts, one, path, one), ARCHS
    yield "of 48 groups", partial(state_slots, tables, ints(48), 2, ints(48, 16)), ARCHS
    yield "63 nodes", partial(count_trees, one, one, path, ints(83, dtype=torch.int64), 3, 64), ARCHS
    hidden = torch.zeros(8, 5120, dtype=torch.bfloat16)
    yield (
        "of five layers",
        partial(gather_rows, [hidden] * 5, RowPointers.of([hidden] * 5), starts, path, one, one),
        ARCHS,
    )
    for ranks, dtype in ((16, torch.bfloat16), (1, torch.bfloat16), (63, torch.float16), (16, torch.float32)):
        yield topk(ranks, dtype)
    yield from shards()


def attention(
    size: int, dtype: torch.dtype, arch: int, tiles: Tiles, starts: torch.Tensor, lens: torch.Tensor, rows: TreeRows
) -> Case:
    """24 query and 4 KV heads, as the 27B target has; laid out as on that GPU."""
    page = 784 if size == 256 else 16  # tokens; the 27B's are as large as a layer's recurrent state
    q, cache = torch.zeros(128, 24, size, dtype=dtype), torch.zeros(4, page, 4, size, dtype=dtype)
    scratch = AttentionScratch.allocate(2, 64, 24, 4, size, "cpu", splits=16, tiles=(tiles,))
    call = partial(tree_attention, q, cache, cache, ints(2, 2), lens, starts, rows, q, 1.0, scratch)
    return f"head size {size}, {dtype}, {tiles.queries} queries", call, (arch,)


def topk(ranks: int, dtype: torch.dtype) -> Case:
    """15 positions of one request; tensors that are on no CPU, so that a GPU's sizes are chosen."""
    logits = torch.empty(15, 248320, dtype=dtype, device="meta")
    logprobs = torch.empty(15, ranks, device="meta")
    scratch = TopkScratch.allocate(15, 248320, ranks, "meta")
    ids = torch.empty(15, ranks, dtype=torch.int64, device="meta")
    return f"{ranks} of {dtype}", partial(top_logprobs, logits, scratch, logprobs, ids), ARCHS


def shards() -> Iterator[Case]:
    """The same of two ranks with half of the vocabulary each."""
    scratch = TopkScratch.allocate(15, 124160, 16, "meta", first=124160)
    found = torch.empty(2, 15, 17, dtype=torch.int64, device="meta")
    logprobs, ids = torch.empty(15, 16, device="meta"), torch.empty(15, 16, dtype=torch.int64, device="meta")
    yield "16 of a shard", partial(narrow_chunks, 15, scratch, found[0]), ARCHS
    yield "16 of two ranks", partial(merge_ranks, found, scratch, logprobs, ids), ARCHS


def caught(call: Callable[[], None]) -> list[tuple[JITFunction[Any], tuple[Any, ...], dict[str, Any]]]:
    """What the call would launch."""
    launches: list[tuple[JITFunction[Any], tuple[Any, ...], dict[str, Any]]] = []

    def catch(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append((self, args, kwargs))

    with mock.patch.object(JITFunction, "run", catch):
        call()
    return launches


def compiled(
    kernel: JITFunction[Any], args: tuple[Any, ...], kwargs: dict[str, Any], archs: tuple[int, ...]
) -> Iterator[dict[str, Any]]:
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    bound = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
    # On the CPU, 16-bit operands are widened for the interpreter's sake; a launch on a GPU does not.
    bound.update({"UPCAST": False} if "UPCAST" in bound else {})
    # As at a launch: 1 becomes a constant, and what divides by 16 may be loaded in wide words.
    constants = {p.name for p in kernel.params if p.is_constexpr} | {
        n for n, v in bound.items() if type(v) is int and v == 1
    }
    aligned = [n for n, v in bound.items() if n not in constants and divides_by_16(v)]
    place = kernel.arg_names.index
    source = ASTSource(
        kernel,
        {n: "constexpr" if n in constants else mangle_type(bound[n]) for n in kernel.arg_names},
        {(place(n),): bound[n] for n in constants},
        {(place(n),): [["tt.divisibility", 16]] for n in aligned},
    )
    for arch in archs:
        built = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        memory = {"shared": built.metadata.shared, "room": ROOM[arch]}
        yield {"kernel": kernel.__name__, "arch": arch, **memory, **usage(built.asm["cubin"])}


def divides_by_16(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.data_ptr() % 16 == 0
    return isinstance(value, int) and value % 16 == 0


def usage(cubin: bytes) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(file)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if match is None:
        raise ValueError(f"cuobjdump printed no resource usage: {text}")
    return {"registers": int(match[1]), "stack": int(match[2])}


def main() -> None:
    for name, call, archs in cases():
        for launch in caught(call):
            for line in compiled(*launch, archs):
                sys.stdout.write(json.dumps({"case": name, **line}) + "\n")


if __name__ == "__main__":
    main()
