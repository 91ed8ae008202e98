"""Compiles, without a GPU, what the Gated DeltaNet functions would launch. Run as a script; prints compile_kernels' lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from compile_kernels import ARCHS, caught, compiled

from ddtree_ext.core.buffers import TreeRows
from ddtree_ext.kernels.gated_norm import gated_norm
from ddtree_ext.kernels.gdn_commit import CommitTable, GdnLayer, commit_tree
from ddtree_ext.kernels.gdn_conv import conv_tree
from ddtree_ext.kernels.gdn_delta import delta_tree
from ddtree_ext.kernels.gdn_stash import GdnScratch, GdnShape, GdnStash
from ddtree_ext.kernels.gdn_tiles import GdnTiles

LARGE = GdnShape(16, 48, 128, 128)
CASES = {
    "Qwen3.6-27B, 16 rows": (LARGE, 16),
    "Qwen3.6-27B, 32 rows": (LARGE, 32),
    "Qwen3.6-27B, 64 rows": (LARGE, 64),
    "Qwen3.6-27B, half, 32 rows": (GdnShape(8, 24, 128, 128), 32),
    "64-wide heads, 21 rows": (GdnShape(2, 4, 64, 64), 21),
}
TILED = {"solve_tree_kernel", "solve_group_kernel", "apply_tree_kernel", "commit_tree_kernel"}
FOUR = {"commit_vector": 4, "commit_warps": 8}
FEW_WARPS = {"apply_halved": 1, "apply_k": 16, "apply_warps": 2}
SETTINGS: dict[str, tuple[int, dict[str, int]]] = {
    "early, 16 rows": (16, FOUR | FEW_WARPS | {"solve_early": 1, "apply_early": 1, "commit_v": 64}),
    "backward, 16 rows": (16, FOUR | {"commit_v": 32, "commit_backward": 1, "solve_group": 1, "solve_warps": 8}),
}
"""Rows of a tree, and what is asked for instead of a GPU's own tiles: what benchmarks.gpu.sweep tries, in a few cases."""
META = torch.device("meta")  # tensors that are on no CPU: so the functions choose a GPU's block sizes
REQUESTS = 2


def ints(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.int32, device=META)


def launches(
    shape: GdnShape, rows_of_a_tree: int, dtype: torch.dtype, changed: Mapping[str, int] | None = None
) -> Iterator[Callable[[], None]]:
    """Convolution, delta rule, norm and commit of a layer of `shape`, with the strides that a GPU's caches have."""
    tiles = replace(GdnTiles.of(META, shape, rows_of_a_tree), **(changed or {}))

    def empty(*size: int) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=META)

    tokens, slots, starts = REQUESTS * rows_of_a_tree, ints(REQUESTS), ints(REQUESTS + 1)
    x, gates = empty(tokens, shape.conv_dim), empty(tokens, 2 * shape.v_heads)
    b, a = gates.chunk(2, dim=1)
    q, k, v = x.split([shape.k_heads * shape.k_dim] * 2 + [shape.v_heads * shape.v_dim], dim=1)
    window = empty(9, 3, shape.conv_dim).transpose(1, 2)
    state = torch.empty(9, shape.v_heads, shape.v_dim, shape.k_dim, device=META)
    rows = TreeRows.allocate(REQUESTS, tokens, META)
    stash = GdnStash.allocate(REQUESTS, rows_of_a_tree, shape, dtype, META)
    scratch = GdnScratch.allocate(REQUESTS, rows_of_a_tree, shape, META)
    out = empty(tokens, shape.v_heads, shape.v_dim)
    a_log, dt_bias = torch.empty(shape.v_heads, device=META), empty(shape.v_heads)
    heads = q.unflatten(1, (-1, shape.k_dim)), k.unflatten(1, (-1, shape.k_dim)), v.unflatten(1, (-1, shape.v_dim))
    yield lambda: conv_tree(x, window, empty(shape.conv_dim, 4), None, slots, starts, rows, x, stash.x)
    yield lambda: delta_tree(*heads, a, b, a_log, dt_bias, state, slots, starts, rows, scratch, out, stash, tiles)
    gate = empty(tokens, shape.conv_dim + shape.v_heads * shape.v_dim)[:, shape.conv_dim :].view(out.shape)
    yield lambda: gated_norm(out, gate, empty(shape.v_dim), 1e-6)
    yield lambda: gated_norm(out, gate, torch.empty(shape.v_dim, device=META), 1e-6, "sigmoid", norm_before_gate=False)
    table = CommitTable.of([GdnLayer(state, window, stash)] * 2, width=4)
    yield lambda: commit_tree(table, slots, slots, ints(REQUESTS, rows_of_a_tree), slots, tiles)


def main() -> None:
    own = [(name, shape, rows, {}) for name, (shape, rows) in CASES.items()]
    tried = [(name, LARGE, rows, changed) for name, (rows, changed) in SETTINGS.items()]
    for name, shape, rows, changed in own + tried:
        for call in launches(shape, rows, torch.bfloat16, changed):
            for launch in caught(call):
                if changed and launch[0].__name__ not in TILED:
                    continue
                for line in compiled(*launch, ARCHS):
                    sys.stdout.write(json.dumps({"case": name, **line}) + "\n")


if __name__ == "__main__":
    main()
