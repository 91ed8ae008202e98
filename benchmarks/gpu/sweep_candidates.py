"""What benchmarks.gpu.sweep tries: settings whose compiled code promised something, and why.

Warps x instructions a head are of 16 rows and sm_90, counted in the compiled code; the setting as it is has 25000 in
`commit_tree` (six rows of path), 18900 in `apply_tree` and 6000 in `solve_tree`, which both first are bound by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_FOUR = "commit_vector=4,commit_warps=8"
"""Four numbers a load: with eight warps, for with four of 32 threads a key's 128 numbers would cross shared memory."""
_HALVED = "apply_halved=1"

CANDIDATES: Mapping[str, Sequence[str]] = {
    "commit_tree": (
        f"{_FOUR},commit_v=32",  # 20000, and 224 loads a head and row of path in place of 608
        f"{_FOUR},commit_v=32,commit_rows=2",
        f"{_FOUR},commit_v=32,commit_rows=4",
        f"{_FOUR},commit_v=32,commit_backward=1",  # 19300; the state is needed last
        f"{_FOUR},commit_v=32,commit_backward=1,commit_rows=4",
        f"{_FOUR},commit_v=64",  # 14200
        f"{_FOUR},commit_v=64,commit_rows=4",
        f"{_FOUR},commit_v=64,commit_backward=1",  # 13300
        f"{_FOUR},commit_v=64,commit_stream=1",
        f"{_FOUR},commit_v=128",  # 11100, but a third of the programs
        "commit_vector=4,commit_warps=16,commit_v=64",
        f"{_FOUR},commit_v=32,commit_stream=1",
    ),
    "apply_tree": (
        _HALVED,  # 14200
        f"{_HALVED},apply_k=16",  # 16000; all programs of 8 x 16 rows at a time
        f"{_HALVED},apply_k=16,apply_warps=2",  # 11500, all at a time
        f"{_HALVED},apply_k=16,apply_warps=2,apply_early=1",
        f"{_HALVED},apply_k=16,apply_warps=2,apply_stages=5",
        f"{_HALVED},apply_k=16,apply_warps=2,apply_stages=5,apply_early=1",
        f"{_HALVED},apply_k=16,apply_warps=2,apply_stream=1",
        f"{_HALVED},apply_k=16,apply_v=128",  # 11700
        f"{_HALVED},apply_k=16,apply_v=128,apply_early=1",
        f"{_HALVED},apply_k=16,apply_v=128,apply_warps=2",  # 9700, where 32 rows spill
        f"{_HALVED},apply_v=128,apply_warps=4",  # 10200, two programs a multiprocessor
        f"{_HALVED},apply_v=128,apply_warps=8",
        f"{_HALVED},apply_v=32,apply_k=16,apply_warps=2,apply_early=1",
        f"{_HALVED},apply_stages=5,apply_early=1",  # all of a state's loads under way at once: for one request
        f"{_HALVED},apply_v=32,apply_stages=5,apply_early=1",
        f"{_HALVED},apply_v=32,apply_warps=2,apply_stages=5,apply_early=1",
        "apply_k=16,apply_warps=2",
    ),
    "solve_tree": (
        "solve_group=1,solve_warps=8",  # 14000 for three V-heads; 32 rows stay as they are
        "solve_group=1,solve_warps=4",  # 11200
        "solve_early=1",  # 16 rows never leave the registers; rows are loaded once
        "solve_early=1,solve_warps=2",
        "solve_early=1,solve_warps=1",  # 3500 and 8 barriers in place of 37; 32 rows spill
        "solve_warps=2",
        "solve_warps=1",
    ),
    "tree_attention": (  # a change leaves one layout to choose from: of 64 queries, if nothing else is said
        "attention_queries=64",
        "attention_queries=64,attention_stages=2",
        "attention_queries=64,attention_keys=32",  # 182 registers in place of 236
        "attention_queries=64,attention_keys=32,attention_programs=264",
        "attention_queries=128,attention_warps=8",  # what is chosen for 8 requests; 88 bytes are spilled
        "attention_queries=128,attention_warps=8,attention_keys=32,attention_stages=4",
    ),
}
