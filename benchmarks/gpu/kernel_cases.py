"""The kernels of a verify step with random inputs: each case launches one of them for all layers, as a step does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from benchmarks.gpu.dims import Dims
from benchmarks.gpu.roofline import CONV_WIDTH, DRAFTER_WIDTH, RANKS, Step
from ddtree_ext.core.buffers import TreeBuffers, TreeRows
from ddtree_ext.engine.counters import NODES, SUMS
from ddtree_ext.kernels.attention import tree_attention
from ddtree_ext.kernels.attention_scratch import AttentionScratch
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
from ddtree_ext.kernels.gdn_stash import GdnScratch, GdnShape, GdnStash
from ddtree_ext.kernels.gdn_tiles import GdnTiles
from ddtree_ext.kernels.rows import expand_rows
from ddtree_ext.kernels.topk import top_logprobs
from ddtree_ext.kernels.topk_scratch import TopkScratch
from ddtree_ext.kernels.walk import walk_trees

BLOCK = 784
"""Tokens of a KV cache block: as many as take the memory of a layer's recurrent state."""


@dataclass(frozen=True)
class Case:
    """`launch` does what the roofline's `kernels` do in one step."""

    name: str
    kernels: tuple[str, ...]
    launch: Callable[[], None]


def beside_the_spine(rows: int) -> tuple[list[int], list[int]]:
    """Parents and depths of a tree whose row 1 is a leaf, and rows 2, 3, ... a chain below the root.

    So every accepted row of the chain has to be moved by one, whatever the length of the path.
    """
    parents = [-1, 0, 0, *range(2, rows - 1)][:rows]
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return parents, depths


@dataclass(frozen=True)
class Inputs:
    """The batch of a step, R requests of N rows each, on a device; random tensors of a layer are drawn when asked for."""

    dims: Dims
    step: Step
    device: str
    changed: Mapping[str, int] = field(
        default_factory=dict
    )  # fields of the device's GdnTiles, and what they are instead

    @cached_property
    def tiles(self) -> GdnTiles:
        return replace(GdnTiles.of(torch.device(self.device), self.shape, self.step.rows), **self.changed)

    @cached_property
    def shape(self) -> GdnShape:
        ranks = self.step.ranks
        return GdnShape(
            self.dims.gdn_k_heads // ranks, self.dims.gdn_v_heads // ranks, self.dims.gdn_dim, self.dims.gdn_dim
        )

    @property
    def tokens(self) -> int:
        return self.step.batch * self.step.rows

    @property
    def path_rows(self) -> int:
        return round(self.step.path)

    def random(self, *size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*size, device=self.device, dtype=dtype)

    def ints(self, values: object, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, device=self.device, dtype=dtype)

    @cached_property
    def trees(self) -> TreeBuffers:
        parents, depths = beside_the_spine(self.step.rows)
        trees = TreeBuffers.allocate(self.step.batch, self.step.nodes, self.device)
        trees.parents[:] = self.ints(parents)
        trees.depths[:] = self.ints(depths)
        for row, parent in list(enumerate(parents))[1:]:
            trees.ancestors[:, row] |= trees.ancestors[:, parent]
        trees.tokens[:] = torch.arange(1, self.step.nodes + 1, device=self.device)
        trees.num_nodes[:] = self.step.nodes
        return trees

    @cached_property
    def slots(self) -> torch.Tensor:
        return torch.arange(self.step.batch, device=self.device)

    @cached_property
    def state_slots(self) -> torch.Tensor:
        """Slot 0 is the null block."""
        return torch.arange(1, self.step.batch + 1, device=self.device, dtype=torch.int32)

    @cached_property
    def starts(self) -> torch.Tensor:
        return torch.arange(self.step.batch + 1, device=self.device, dtype=torch.int32) * self.step.rows

    @cached_property
    def seq_lens(self) -> torch.Tensor:
        return self.ints([self.step.context + self.step.rows] * self.step.batch)

    @cached_property
    def is_tree(self) -> torch.Tensor:
        return self.ints([1] * self.step.batch)

    @cached_property
    def consumed(self) -> torch.Tensor:
        return self.ints([self.path_rows] * self.step.batch)

    @cached_property
    def path(self) -> torch.Tensor:
        accepted = [0, *range(2, self.path_rows + 1)]
        return self.ints([accepted + [-1] * (self.step.rows - len(accepted))] * self.step.batch)

    @cached_property
    def rows(self) -> TreeRows:
        rows = TreeRows.allocate(self.step.batch, self.tokens, self.device)
        path = torch.empty_like(self.path)
        expand_rows(self.slots, self.starts, self.seq_lens, self.is_tree, path, self.trees, rows)
        return rows


def cases(dims: Dims, step: Step, device: str, changed: Mapping[str, int] | None = None) -> Iterator[Case]:
    """One after the other, so that the inputs of one can be freed before the next. Needs 3 nodes at least.

    `changed` tiles of the Gated DeltaNet kernels are tried instead of the device's.
    """
    inputs = Inputs(dims, step, device, changed or {})
    rows = TreeRows.allocate(step.batch, inputs.tokens, device)
    path = torch.empty_like(inputs.path)
    tree = inputs.slots, inputs.starts, inputs.seq_lens, inputs.is_tree, path, inputs.trees, rows
    yield _slots(inputs)
    yield Case("expand_rows", ("expand_rows",), lambda: expand_rows(*tree))
    yield from _delta(inputs)
    yield _norm(inputs)
    yield _attention(inputs)
    yield _compact(inputs)
    yield _walk(inputs)
    yield _count(inputs)
    yield _gather(inputs)
    yield _topk(inputs)
    yield _build(inputs)


def _delta(inputs: Inputs) -> Iterator[Case]:
    """Every layer has its own state, window and stash; the scratch is shared."""
    shape, step, tokens = inputs.shape, inputs.step, inputs.tokens
    scratch = GdnScratch.allocate(step.batch, step.rows, shape, inputs.device)
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
    yield Case("conv_tree", ("conv_tree",), convolve)
    yield Case("solve_tree", ("solve_tree",), solve)
    yield Case("apply_tree", ("apply_tree",), apply)
    yield Case("commit_tree", ("commit_tree",), lambda: commit_tree(table, *committed, inputs.tiles))


def _norm(inputs: Inputs) -> Case:
    """The gate as the projection leaves it: behind what goes to the convolution, in the same rows. A layer has its own rows."""
    shape, layers = inputs.shape, inputs.dims.layers - inputs.dims.layers // 4
    out = inputs.random(layers, inputs.tokens, shape.v_heads, shape.v_dim)
    projected = inputs.random(layers, inputs.tokens, shape.conv_dim + shape.v_heads * shape.v_dim)
    gates, weight = projected[:, :, shape.conv_dim :].unflatten(2, (-1, shape.v_dim)), inputs.random(shape.v_dim)

    def norm() -> None:
        for layer in range(layers):
            gated_norm(out[layer], gates[layer], weight, 1e-6)

    return Case("gated_norm", ("gated_norm",), norm)


def _kv(inputs: Inputs) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """K and V of every attention layer [blocks, BLOCK, heads, head_dim], and the batch's block table."""
    step, dims = inputs.step, inputs.dims
    blocks = -(-(step.context + step.rows) // BLOCK)
    size = (step.batch * blocks, BLOCK, max(1, dims.kv_heads // step.ranks), dims.head_dim)
    caches = [(inputs.random(*size), inputs.random(*size)) for _ in range(dims.layers // 4)]
    order = torch.randperm(step.batch * blocks, device=inputs.device).to(torch.int32)
    return caches, order.view(step.batch, blocks)


def _attention(inputs: Inputs) -> Case:
    step, dims = inputs.step, inputs.dims
    caches, blocks = _kv(inputs)
    heads, kv_heads = dims.heads // step.ranks, max(1, dims.kv_heads // step.ranks)
    scratch = AttentionScratch.allocate(step.batch, step.rows, heads, kv_heads, dims.head_dim, inputs.device)
    q = inputs.random(inputs.tokens, heads, dims.head_dim)
    out, scale = torch.empty_like(q), dims.head_dim**-0.5

    def attend() -> None:
        for k, v in caches:
            tree_attention(q, k, v, blocks, inputs.seq_lens, inputs.starts, inputs.rows, out, scale, scratch)

    return Case("tree_attention", ("attention, splits", "attention, combine"), attend)


def _compact(inputs: Inputs) -> Case:
    caches, blocks = _kv(inputs)
    table, tables = CompactTable.of([GroupedCache(0, *cache) for cache in caches]), BlockTables.of([blocks])
    moved = inputs.seq_lens, inputs.starts, inputs.is_tree, inputs.path, inputs.consumed

    def compact() -> None:
        assert caches  # the table holds their addresses alone
        compact_kv(table, tables, *moved)

    return Case("compact_kv", ("compact_kv",), compact)


def _walk(inputs: Inputs) -> Case:
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

    return Case("walk_trees", ("walk_trees",), walk)


def _slots(inputs: Inputs) -> Case:
    layers, batch = inputs.dims.layers - inputs.dims.layers // 4, inputs.step.batch
    tables = BlockTables.of([inputs.ints([[layer + 1] * 4] * batch) for layer in range(layers)])
    groups, slots = inputs.ints(list(range(layers))), inputs.ints([[0] * batch] * layers)
    return Case("state_slots", ("state_slots",), lambda: state_slots(tables, groups, batch, slots))


def _count(inputs: Inputs) -> Case:
    totals = torch.zeros(SUMS + NODES + DRAFTER_WIDTH + 1, dtype=torch.int64, device=inputs.device)
    lens = inputs.rows.tree_len
    return Case(
        "count_trees",
        ("count_trees",),
        lambda: count_trees(lens, inputs.consumed, inputs.path, totals, SUMS, NODES),
    )


def _gather(inputs: Inputs) -> Case:
    states = [inputs.random(inputs.tokens, inputs.dims.hidden) for _ in inputs.dims.taps]
    pointers = RowPointers.of(states)

    def gather() -> None:
        gather_rows(states, pointers, inputs.starts, inputs.path, inputs.consumed, inputs.is_tree)

    return Case("gather_rows", ("gather_rows",), gather)


def _topk(inputs: Inputs) -> Case:
    drafted, vocabulary = inputs.step.batch * DRAFTER_WIDTH, inputs.dims.vocabulary
    logits = inputs.random(drafted, vocabulary)
    scratch = TopkScratch.allocate(drafted, vocabulary, RANKS, inputs.device)
    logprobs = inputs.random(drafted, RANKS, dtype=torch.float32)
    ids = torch.empty_like(logprobs, dtype=torch.int64)
    kernels = ("topk, chunks", "topk, merge")
    return Case("top_logprobs", kernels, lambda: top_logprobs(logits, scratch, logprobs, ids))


def _build(inputs: Inputs) -> Case:
    step = inputs.step
    scores = inputs.random(step.batch, DRAFTER_WIDTH, 64, dtype=torch.float32).log_softmax(-1)
    logprobs, ids = scores.topk(RANKS, -1)
    budgets = inputs.ints([step.nodes] * step.batch)
    grown = TreeBuffers.allocate(step.batch, step.nodes, inputs.device)
    return Case("build_trees", ("build_trees",), lambda: build_trees(logprobs, ids, budgets, inputs.slots, grown))
