"""How the Gated DeltaNet kernels are laid out on a device: the sizes of their tiles, and the warps of their programs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from ddtree_ext.kernels.gdn_stash import GdnShape


@dataclass(frozen=True)
class GdnTiles:
    """Tiles of `solve_tree` (columns of K at a time), `apply_tree` and `commit_tree`, powers of two; and what else decides how
    long they take, but not what they compute: 0 and 1 are no and yes. benchmarks/gpu/sweep.py tries them.

    solve_group      with all of K at a time, of 16 rows: a K-head's V-heads in one program
    solve_early      with all of K at a time: rows are loaded first and once, and 16 of them are solved in registers
    apply_k          columns of the state at a time, 16 or more
    apply_v          rows of the state of a program, 16 or more
    apply_stages     of the loop over K, one more than the parts of it on their way
    apply_early      loads what joins the state's products before the state
    apply_halved     splits operands for tf32 by itself, in fewer instructions
    commit_heads     V-heads of a program, and
    commit_v         rows of the state of each
    commit_rows      of the path, whose loads go together
    commit_vector    numbers of the state that a thread moves at a time: 1 or 4
    commit_backward  sums from the path's end
    apply_stream, commit_stream: the state is the first that the caches give up
    """

    solve_k: int
    solve_warps: int
    apply_k: int
    apply_v: int
    apply_warps: int
    commit_heads: int
    commit_v: int
    commit_warps: int
    solve_early: int = 0
    solve_group: int = 0
    apply_stages: int = 3
    apply_early: int = 0
    apply_halved: int = 0
    apply_stream: int = 0
    commit_rows: int = 1
    commit_vector: int = 1
    commit_backward: int = 0
    commit_stream: int = 0

    @classmethod
    def of(cls, device: torch.device, shape: GdnShape, rows: int) -> GdnTiles:
        """For trees of so many rows and a GPU's registers. Triton's interpreter takes as long at any size: one tile there."""
        k_dim, v_dim = max(16, triton.next_power_of_2(shape.k_dim)), max(16, triton.next_power_of_2(shape.v_dim))
        if device.type == "cpu":
            heads, state_rows = triton.next_power_of_2(shape.v_heads), triton.next_power_of_2(shape.v_dim)
            return cls(k_dim, 4, k_dim, v_dim, 4, commit_heads=heads, commit_v=state_rows, commit_warps=4)
        commit_v = min(16, triton.next_power_of_2(shape.v_dim))
        if rows <= 32:
            # The fastest of a sweep on an H200, heads of 128: alone and at batch 8, 16 and 32 rows.
            solve_k, apply_v = min(128, k_dim), min(64, v_dim)
        else:  # those would spill
            solve_k, apply_v = min(32, k_dim), min(32, v_dim)
        return cls(solve_k, 4, min(32, k_dim), apply_v, 4, commit_heads=1, commit_v=commit_v, commit_warps=4)
