"""Batches for the tests of the Gated DeltaNet kernels: random layers, caches and trees, and outputs full of poison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ddtree_ext.core import gdn_reference as reference
from ddtree_ext.core.buffers import DEAD, ROOT, TreeRows
from ddtree_ext.kernels.gdn_commit import CommitTable, GdnLayer, commit_tree
from ddtree_ext.kernels.gdn_conv import conv_tree
from ddtree_ext.kernels.gdn_delta import delta_tree
from ddtree_ext.kernels.gdn_stash import GdnScratch, GdnShape, GdnStash
from ddtree_ext.kernels.gdn_tiles import GdnTiles

SLOTS = 9
POISON = 777.0


def random_parents(gen: torch.Generator, rows: int) -> list[int]:
    """A spine of about half the rows first, then rows anywhere below it."""
    spine = (rows + 1) // 2
    return [row - 1 if row < spine else int(torch.randint(0, row, (), generator=gen)) for row in range(rows)]


def chain(rows: int) -> list[int]:
    return list(range(-1, rows - 1))


def ancestor_words(parents: Sequence[int]) -> list[int]:
    """Of every row, as signed 64-bit integers."""
    words = [sum(1 << row for row in reference.root_path(parents, own)) for own in range(len(parents))]
    return [word - (1 << 64) if word >> 63 else word for word in words]


@dataclass(frozen=True)
class Layer:
    """Weights and caches. The caches may lie in memory in another order than their axes."""

    shape: GdnShape
    weight: torch.Tensor  # [dim, width]
    bias: torch.Tensor | None
    a_log: torch.Tensor
    dt_bias: torch.Tensor  # in the model's dtype, unlike a_log
    window: torch.Tensor  # [slots, dim, width - 1]
    state: torch.Tensor  # [slots, HV, V, K]

    @property
    def width(self) -> int:
        return int(self.weight.shape[1])

    def copy(self) -> Layer:
        """The same layer with caches of its own, in the same memory order."""
        return replace(self, window=self.window.clone(), state=self.state.clone())


def random_layer(
    gen: torch.Generator,
    shape: GdnShape,
    width: int = 4,
    bias: bool = False,
    state_order: str = "VK",
    window_order: str = "DS",
    dtype: torch.dtype = torch.bfloat16,
) -> Layer:
    """`state_order` VK or KV, `window_order` DS (dim first) or SD: how the caches lie in memory."""

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=gen)

    state = normal(SLOTS, shape.v_heads, shape.v_dim, shape.k_dim)
    window = normal(SLOTS, shape.conv_dim, width - 1).to(dtype)
    return Layer(
        shape=shape,
        weight=(normal(shape.conv_dim, width) * 0.7).to(dtype),
        bias=normal(shape.conv_dim).to(dtype) if bias else None,
        a_log=normal(shape.v_heads),
        dt_bias=normal(shape.v_heads).to(dtype),
        window=window if window_order == "DS" else window.transpose(1, 2).contiguous().transpose(1, 2),
        state=state if state_order == "VK" else state.transpose(2, 3).contiguous().transpose(2, 3),
    )


@dataclass(frozen=True)
class Request:
    """`parents` None: rows that are no tree. `length` rows in the batch, those beyond the parents are dead."""

    slot: int
    parents: list[int] | None
    length: int

    @property
    def live(self) -> int:
        return len(self.parents or ())


def tree(slot: int, parents: list[int], dead: int = 0) -> Request:
    return Request(slot, parents, len(parents) + dead)


@dataclass(frozen=True)
class Batch:
    """The inputs of one layer's verify step."""

    requests: list[Request]
    x: torch.Tensor  # [T, dim]
    a: torch.Tensor  # [T, HV]
    b: torch.Tensor

    @property
    def starts(self) -> list[int]:
        return [sum(r.length for r in self.requests[:i]) for i in range(len(self.requests) + 1)]

    def live(self, number: int) -> slice:
        """Rows in the batch of request `number`'s tree."""
        start = self.starts[number]
        return slice(start, start + self.requests[number].live)

    def path_alone(self, number: int, row: int) -> Batch:
        """One request: the root path of `row` of request `number`, as a chain."""
        request = self.requests[number]
        assert request.parents is not None
        path = torch.tensor(reference.root_path(request.parents, row)) + self.starts[number]
        return Batch([tree(request.slot, chain(len(path)))], self.x[path], self.a[path], self.b[path])


def random_batch(gen: torch.Generator, shape: GdnShape, requests: list[Request], dtype: torch.dtype) -> Batch:
    tokens = sum(r.length for r in requests)
    wide = torch.randn(tokens, shape.conv_dim + 10, generator=gen).to(dtype)
    gates = (torch.randn(tokens, 2 * shape.v_heads, generator=gen) * 3).to(dtype)
    gates[::5, : shape.v_heads] = 30.0  # where softplus is linear
    # Slices, as the projections give them: rows further apart than they are long.
    return Batch(requests, wide[:, : shape.conv_dim], *gates.chunk(2, dim=1))


@dataclass(frozen=True)
class Step:
    """What a verify step of one layer wrote; the poison shows where it wrote nothing."""

    layer: Layer
    batch: Batch
    conv: torch.Tensor  # [T, dim]
    out: torch.Tensor  # [T, HV, V]
    stash: GdnStash
    scratch: GdnScratch
    slots: torch.Tensor

    def heads(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v as slices of the convolution's output."""
        s = self.layer.shape
        q, k, v = self.conv.split([s.k_heads * s.k_dim, s.k_heads * s.k_dim, s.v_heads * s.v_dim], dim=1)
        return q.unflatten(1, (-1, s.k_dim)), k.unflatten(1, (-1, s.k_dim)), v.unflatten(1, (-1, s.v_dim))

    def exact(self, number: int) -> reference.ScanResult:
        """float64 scan of request `number` on the convolution's outputs as they are."""
        request, live = self.batch.requests[number], self.batch.live(number)
        assert request.parents is not None
        rows = (t[live].double() for t in (*self.heads(), self.batch.a, self.batch.b))
        weights = self.layer.a_log.double(), self.layer.dt_bias.double()
        return reference.scan_tree(*rows, *weights, self.layer.state[request.slot].double(), request.parents)

    def commit(
        self, paths: Sequence[Sequence[int]], is_tree: Sequence[int] | None = None, tiles: GdnTiles | None = None
    ) -> None:
        commit([self], paths, is_tree, tiles=tiles)


def verify(
    layer: Layer,
    batch: Batch,
    rows_of_a_tree: int | None = None,
    out_dtype: torch.dtype | None = None,
    conv_outputs: torch.Tensor | None = None,
    tiles: GdnTiles | None = None,
) -> Step:
    """Runs convolution and delta rule on poisoned outputs; with `conv_outputs` [T, dim] the rule reads those instead."""
    count = len(batch.requests)
    tree_rows = rows_of_a_tree or max(r.length for r in batch.requests)
    rows = TreeRows.allocate(count, batch.x.shape[0], batch.x.device)
    for number, request in enumerate(batch.requests):
        start = batch.starts[number]
        own = request.parents if request.parents is not None else chain(request.length)
        rows.parents[start : start + request.length] = torch.tensor(
            [*own, *[DEAD] * (request.length - len(own))], dtype=torch.int32
        )
        if request.parents is not None:
            rows.ancestors[start : start + len(own)] = torch.tensor(ancestor_words(own))
        rows.tree_len[number] = request.live
    starts = torch.tensor(batch.starts, dtype=torch.int32)
    slots = torch.tensor([r.slot for r in batch.requests], dtype=torch.int32)
    stash = GdnStash.allocate(count + 1, tree_rows, layer.shape, batch.x.dtype, batch.x.device)
    scratch = GdnScratch.allocate(count + 1, tree_rows, layer.shape, batch.x.device)
    for buffer in (stash.x, stash.k, stash.u, stash.decay):
        buffer.fill_(POISON)
    for buffer in (scratch.q, scratch.solve, scratch.mix, scratch.beta, scratch.fade):
        buffer.fill_(torch.nan)
    dtype = out_dtype or batch.x.dtype
    conv = torch.full(batch.x.shape, torch.nan, dtype=dtype)
    out = torch.full((len(conv), layer.shape.v_heads, layer.shape.v_dim), torch.nan, dtype=dtype)
    conv_tree(batch.x, layer.window, layer.weight, layer.bias, slots, starts, rows, conv, stash.x)
    step = Step(layer, batch, conv if conv_outputs is None else conv_outputs, out, stash, scratch, slots)
    delta_tree(
        *step.heads(),
        batch.a,
        batch.b,
        layer.a_log,
        layer.dt_bias,
        layer.state,
        slots,
        starts,
        rows,
        scratch,
        out,
        stash,
        tiles,
    )
    return step


def commit(
    steps: Sequence[Step],
    paths: Sequence[Sequence[int]],
    is_tree: Sequence[int] | None = None,
    slots: torch.Tensor | None = None,
    groups: Sequence[int] | None = None,
    tiles: GdnTiles | None = None,
) -> None:
    """One commit of all `steps` (layers with the same batch), path by request."""
    groups = groups or [0] * len(steps)
    layers = [GdnLayer(s.layer.state, s.layer.window, s.stash, g) for s, g in zip(steps, groups, strict=True)]
    path = torch.full((len(paths), steps[0].stash.k.shape[1]), ROOT, dtype=torch.int32)
    for number, rows in enumerate(paths):
        path[number, : len(rows)] = torch.tensor(rows, dtype=torch.int32)
    flags = is_tree if is_tree is not None else [int(r.parents is not None) for r in steps[0].batch.requests]
    commit_tree(
        CommitTable.of(layers, steps[0].layer.width),
        steps[0].slots if slots is None else slots,
        torch.tensor([len(rows) for rows in paths], dtype=torch.int32),
        path,
        torch.tensor(flags, dtype=torch.int32),
        tiles,
    )
