"""The kernels of a verify step with random inputs: each case launches one of them for all layers, as a step does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks.gpu.dims import Dims
from benchmarks.gpu.kernel_inputs import ATTENTION, BLOCK, Inputs
from benchmarks.gpu.roofline import CONV_WIDTH, DRAFTER_WIDTH, RANKS, Step
from ddtree_ext.core.buffers import TreeBuffers, TreeRows
from ddtree_ext.engine.counters import NODES, SUMS
from ddtree_ext.kernels.attention import tree_attention
from ddtree_ext.kernels.attention_scratch import AttentionScratch, Tiles
from ddtree_ext.kernels.block_tables import BlockTables, state_slots
from ddtree_ext.kernels.build import build_trees
from ddtree_ext.kernels.compact import CompactTable, GroupedCache, compact_kv
from ddtree_ext.kernels.count import count_trees
from ddtree_ext.kernels.gated_norm import gated_norm
from ddtree_ext.kernels.gather import RowPointers, gather_rows
from ddtree_ext.kernels.gdn_commit import CommitTable, GdnLayer, commit_tree
from ddtree_ext.kernels.gdn_conv import conv_tree
from ddtree_ext.kernels.gdn_delta import apply_tree
from ddtree_ext.kernels.gdn_solve import solve_tree
from ddtree_ext.kernels.gdn_stash import GdnScratch, GdnStash
from ddtree_ext.kernels.rows import expand_rows
from ddtree_ext.kernels.topk import top_logprobs
from ddtree_ext.kernels.topk_scratch import TopkScratch
from ddtree_ext.kernels.walk import walk_trees


@dataclass(frozen=True)
class Case:
    """`launch` does what the roofline's `kernels` do in one step. `wrote`: what it leaves, of the last layer, to be compared."""

    name: str
    kernels: tuple[str, ...]
    launch: Callable[[], None]
    wrote: tuple[torch.Tensor, ...] = ()


def cases(
    dims: Dims,
    step: Step,
    device: str,
    changed: Mapping[str, int] | None = None,
    only: Collection[str] | None = None,
) -> Iterator[Case]:
    """One after the other, so that the inputs of one can be freed before the next. Needs 3 nodes at least.

    `changed` tiles are tried instead of the device's. `only` cases of these names.
    """
    inputs = Inputs(dims, step, device, changed or {})
    makers: tuple[tuple[Callable[[Inputs], Iterator[Case]], tuple[str, ...]], ...] = (
        (_slots, ("state_slots",)),
        (_expand, ("expand_rows",)),
        (_delta, ("conv_tree", "solve_tree", "apply_tree", "commit_tree")),
        (_norm, ("gated_norm",)),
        (_attention, ("tree_attention",)),
        (_compact, ("compact_kv",)),
        (_walk, ("walk_trees",)),
        (_count, ("count_trees",)),
        (_gather, ("gather_rows",)),
        (_topk, ("top_logprobs",)),
        (_build, ("build_trees",)),
    )
    for make, names in makers:
        if only is None or set(names) & set(only):
            yield from (case for case in make(inputs) if only is None or case.name in only)


def _expand(inputs: Inputs) -> Iterator[Case]:
    rows = TreeRows.allocate(inputs.step.batch, inputs.tokens, inputs.device)
    path = torch.empty_like(inputs.path)
    tree = inputs.slots, inputs.starts, inputs.seq_lens, inputs.is_tree, path, inputs.trees, rows
    yield Case("expand_rows", ("expand_rows",), lambda: expand_rows(*tree))


def _delta(inputs: Inputs) -> Iterator[Case]:
    """Every layer has its own state, window and stash; the scratch is shared."""
    shape, step, tokens = inputs.shape, inputs.step, inputs.tokens
    scratch = GdnScratch.allocate(step.batch, step.rows, shape, inputs.device)
    for left in (scratch.q, scratch.solve, scratch.mix, scratch.beta, scratch.fade):
        left.normal_(std=0.1)  # for a case whose kernels read what others leave
    weight, a_log, dt_bias = inputs.random(shape.conv_dim, CONV_WIDTH), torch.zeros(shape.v_heads), torch.zeros(1)
    a_log, dt_bias = a_log.to(inputs.device), dt_bias.expand(shape.v_heads).contiguous().to(inputs.device)
    x, gates = inputs.random(tokens, shape.conv_dim), inputs.random(tokens, 2 * shape.v_heads)
    b, a = gates.chunk(2, dim=1)
    conv, out = inputs.random(tokens, shape.conv_dim), inputs.random(tokens, shape.v_heads, shape.v_dim)
    key_dim = shape.k_heads * shape.k_dim
    q, k, v = conv.split([key_dim, key_dim, shape.v_heads * shape.v_dim], dim=1)
    q, k, v = q.unflatten(1, (-1, shape.k_dim)), k.unflatten(1, (-1, shape.k_dim)), v.unflatten(1, (-1, shape.v_dim))
    layers = [
        GdnLayer(
            inputs.random(step.batch + 1, shape.v_heads, shape.v_dim, shape.k_dim, dtype=torch.float32),
            inputs.random(step.batch + 1, CONV_WIDTH - 1, shape.conv_dim).transpose(1, 2),
            GdnStash.allocate(step.batch, step.rows, shape, torch.bfloat16, inputs.device),
        )
        for _ in range(inputs.dims.layers - inputs.dims.layers // 4)
    ]
    for layer in layers:
        for kept in (layer.stash.k, layer.stash.u):
            kept.normal_(std=0.1)
        layer.stash.decay.uniform_()
    where = inputs.state_slots, inputs.starts, inputs.rows

    def convolve() -> None:
        for layer in layers:
            conv_tree(x, layer.conv_state, weight, None, *where, conv, layer.stash.x)

    def solve() -> None:
        for layer in layers:
            solve_tree(q, k, a, b, a_log, dt_bias, *where, scratch, layer.stash, inputs.tiles)

    def apply() -> None:
        for layer in layers:
            apply_tree(v, layer.ssm_state, *where, scratch, out, layer.stash, inputs.tiles)

    table = CommitTable.of(layers, CONV_WIDTH)
    committed = inputs.state_slots, inputs.consumed, inputs.path, inputs.is_tree
    last, layer = layers[-1].stash, layers[-1]
    solved = scratch.q, scratch.solve, scratch.mix, scratch.beta, scratch.fade, last.k, last.decay
    yield Case("conv_tree", ("conv_tree",), convolve, (conv, last.x))
    yield Case("solve_tree", ("solve_tree",), solve, solved)
    yield Case("apply_tree", ("apply_tree",), apply, (out, last.u))
    commit = partial(commit_tree, table, *committed, inputs.tiles)
    yield Case("commit_tree", ("commit_tree",), commit, (layer.ssm_state, layer.conv_state))


def _norm(inputs: Inputs) -> Iterator[Case]:
    """The gate as the projection leaves it: behind what goes to the convolution, in the same rows. A layer has its own rows."""
    shape, layers = inputs.shape, inputs.dims.layers - inputs.dims.layers // 4
    out = inputs.random(layers, inputs.tokens, shape.v_heads, shape.v_dim)
    projected = inputs.random(layers, inputs.tokens, shape.conv_dim + shape.v_heads * shape.v_dim)
    gates, weight = projected[:, :, shape.conv_dim :].unflatten(2, (-1, shape.v_dim)), inputs.random(shape.v_dim)

    def norm() -> None:
        for layer in range(layers):
            gated_norm(out[layer], gates[layer], weight, 1e-6)

    yield Case("gated_norm", ("gated_norm",), norm)


def _kv(inputs: Inputs) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """K and V of every attention layer [blocks, BLOCK, heads, head_dim], and the batch's block table."""
    step, dims = inputs.step, inputs.dims
    blocks = -(-(step.context + step.rows) // BLOCK)
    size = (step.batch * blocks, BLOCK, max(1, dims.kv_heads // step.ranks), dims.head_dim)
    caches = [(inputs.random(*size), inputs.random(*size)) for _ in range(dims.layers // 4)]
    order = torch.randperm(step.batch * blocks, device=inputs.device).to(torch.int32)
    return caches, order.view(step.batch, blocks)


def _attention(inputs: Inputs) -> Iterator[Case]:
    step, dims = inputs.step, inputs.dims
    caches, blocks = _kv(inputs)
    heads, kv_heads = dims.heads // step.ranks, max(1, dims.kv_heads // step.ranks)
    size, members = torch.bfloat16.itemsize, step.rows * (heads // kv_heads)
    tiles = Tiles.of(torch.device(inputs.device), dims.head_dim, size, members, step.rows * heads)
    changed = {name.removeprefix(ATTENTION): n for name, n in inputs.changed.items() if name.startswith(ATTENTION)}
    tiles = (replace(tiles[0], **changed),) if changed else tiles
    scratch = AttentionScratch.allocate(
        step.batch, step.rows, heads, kv_heads, dims.head_dim, inputs.device, tiles=tiles
    )
    q = inputs.random(inputs.tokens, heads, dims.head_dim)
    out, scale = torch.empty_like(q), dims.head_dim**-0.5

    def attend() -> None:
        for k, v in caches:
            tree_attention(q, k, v, blocks, inputs.seq_lens, inputs.starts, inputs.rows, out, scale, scratch)

    yield Case("tree_attention", ("attention, splits", "attention, combine"), attend, (out,))


def _compact(inputs: Inputs) -> Iterator[Case]:
    caches, blocks = _kv(inputs)
    table, tables = CompactTable.of([GroupedCache(0, *cache) for cache in caches]), BlockTables.of([blocks])
    moved = inputs.seq_lens, inputs.starts, inputs.is_tree, inputs.path, inputs.consumed

    def compact() -> None:
        assert caches  # the table holds their addresses alone
        compact_kv(table, tables, *moved)

    yield Case("compact_kv", ("compact_kv",), compact)


def _walk(inputs: Inputs) -> Iterator[Case]:
    """The target wants the chain's nodes as far as the path goes, and then a token that no node has."""
    step = inputs.step
    own = torch.arange(step.rows, device=inputs.device)  # node in row i holds token i
    wanted = torch.where((own > 0) & (own < inputs.path_rows), own + 1, -1)
    wanted[0] = 2
    sampled, tokens = wanted.repeat(step.batch), own.repeat(step.batch)
    out = torch.empty(step.batch, step.rows, dtype=torch.int64, device=inputs.device)
    count, path = torch.empty_like(inputs.consumed), torch.empty_like(inputs.path)

    def walk() -> None:
        walk_trees(sampled, tokens, inputs.starts, inputs.slots, inputs.is_tree, inputs.trees, out, count, path)

    yield Case("walk_trees", ("walk_trees",), walk)


def _slots(inputs: Inputs) -> Iterator[Case]:
    layers, batch = inputs.dims.layers - inputs.dims.layers // 4, inputs.step.batch
    tables = BlockTables.of([inputs.ints([[layer + 1] * 4] * batch) for layer in range(layers)])
    groups, slots = inputs.ints(list(range(layers))), inputs.ints([[0] * batch] * layers)
    yield Case("state_slots", ("state_slots",), lambda: state_slots(tables, groups, batch, slots))


def _count(inputs: Inputs) -> Iterator[Case]:
    totals = torch.zeros(SUMS + NODES + DRAFTER_WIDTH + 1, dtype=torch.int64, device=inputs.device)
    lens = inputs.rows.tree_len
    yield Case(
        "count_trees",
        ("count_trees",),
        lambda: count_trees(lens, inputs.consumed, inputs.path, totals, SUMS, NODES),
    )


def _gather(inputs: Inputs) -> Iterator[Case]:
    states = [inputs.random(inputs.tokens, inputs.dims.hidden) for _ in inputs.dims.taps]
    pointers = RowPointers.of(states)

    def gather() -> None:
        gather_rows(states, pointers, inputs.starts, inputs.path, inputs.consumed, inputs.is_tree)

    yield Case("gather_rows", ("gather_rows",), gather)


def _topk(inputs: Inputs) -> Iterator[Case]:
    drafted, vocabulary = inputs.step.batch * DRAFTER_WIDTH, inputs.dims.vocabulary
    logits = inputs.random(drafted, vocabulary)
    scratch = TopkScratch.allocate(drafted, vocabulary, RANKS, inputs.device)
    logprobs = inputs.random(drafted, RANKS, dtype=torch.float32)
    ids = torch.empty_like(logprobs, dtype=torch.int64)
    kernels = ("topk, chunks", "topk, merge")
    yield Case("top_logprobs", kernels, lambda: top_logprobs(logits, scratch, logprobs, ids))


def _build(inputs: Inputs) -> Iterator[Case]:
    step = inputs.step
    scores = inputs.random(step.batch, DRAFTER_WIDTH, 64, dtype=torch.float32).log_softmax(-1)
    logprobs, ids = scores.topk(RANKS, -1)
    budgets = inputs.ints([step.nodes] * step.batch)
    grown = TreeBuffers.allocate(step.batch, step.nodes, inputs.device)
    yield Case("build_trees", ("build_trees",), lambda: build_trees(logprobs, ids, budgets, inputs.slots, grown))
