"""What one decode step costs on one rank: bytes and FLOPs of everything that it runs, at the rates of calibration.py.

An estimate. Widths from dims.py, our own kernels' work from roofline.py; every time is in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.gpu import calibration as rates
from benchmarks.gpu.dims import Dims
from benchmarks.gpu.roofline import ACTIVATION, DRAFTER_WIDTH, WIDE, Card, Step, works

WINDOW = 2048
"""Keys that the drafter's sliding layers see; its last layer sees all."""
FUSED_ROWS = 8
"""Rows of a request up to which stock's Gated DeltaNet layer keeps its fused path."""


@dataclass(frozen=True)
class Bus:
    """Between two ranks: bytes/s in each direction, and seconds that a collective takes however little it moves."""

    rate: float
    latency: float


@dataclass(frozen=True)
class Machine:
    """quality: what every calibrated share is multiplied by, up to the peak; a launch takes as much less. ours: of our kernels
    once more.
    """

    card: Card
    ranks: int = 1
    bus: Bus | None = None
    quality: float = 1.0
    ours: float = 1.0

    def rate(self, rate: rates.Rate, times: float = 1.0) -> rates.Rate:
        """Here, and so many times as good."""
        quality = self.quality * times
        return rates.Rate(rate.launch / quality, min(1.0, rate.share * quality))

    @property
    def matrix(self) -> rates.MatrixRates:
        found = rates.MATRIX
        return rates.MatrixRates(
            min(1.0, found.memory * self.quality),
            min(1.0, found.compute * self.quality),
            found.launch / self.quality,
            found.bend,
        )


@dataclass(frozen=True)
class Arm:
    """ar, chain:K of stock, or spine:K and tree:B of ours: how many rows of a request are verified, and drafted."""

    kind: str
    tokens: int = 0

    @classmethod
    def of(cls, text: str) -> Arm:
        kind, _, tokens = text.partition(":")
        return cls(kind, int(tokens or 0))

    def __str__(self) -> str:
        return self.kind if self.kind == "ar" else f"{self.kind}:{self.tokens}"

    @property
    def ours(self) -> bool:
        return self.kind in ("spine", "tree")

    @property
    def width(self) -> int:
        """Tokens that the drafter predicts; ours at its full width whatever is verified."""
        return {"ar": 0, "chain": self.tokens}.get(self.kind, DRAFTER_WIDTH)


@dataclass(frozen=True)
class Product:
    """`count` products of [rows, inner] with a weight of [inner, outer] on this rank."""

    count: int
    inner: int
    outer: int
    rows: int

    @property
    def weights(self) -> int:
        """Bytes."""
        return self.count * self.inner * self.outer * ACTIVATION

    @property
    def flops(self) -> int:
        return self.count * 2 * self.rows * self.inner * self.outer

    def seconds(self, machine: Machine) -> float:
        moved = self.weights + self.count * self.rows * (self.inner + self.outer) * ACTIVATION
        return machine.matrix.seconds(self.count, moved / machine.card.memory, self.flops / machine.card.bf16)


def target_products(dims: Dims, rows: int, ranks: int) -> tuple[Product, ...]:
    """Of the target's layers; the last one is its lm_head."""
    attending, recurrent = dims.layers // 4, dims.layers - dims.layers // 4
    keys, values = dims.gdn_k_heads * dims.gdn_dim, dims.gdn_v_heads * dims.gdn_dim
    queries, cached = dims.heads * dims.head_dim, max(ranks, dims.kv_heads) * dims.head_dim
    return (
        Product(recurrent, dims.hidden, (2 * keys + 2 * values) // ranks, rows),
        Product(recurrent, dims.hidden, 2 * dims.gdn_v_heads // ranks, rows),
        Product(recurrent, values // ranks, dims.hidden, rows),
        Product(attending, dims.hidden, (2 * queries + 2 * cached) // ranks, rows),  # with the output's gate
        Product(attending, queries // ranks, dims.hidden, rows),
        Product(dims.layers, dims.hidden, 2 * dims.ffn // ranks, rows),
        Product(dims.layers, dims.ffn // ranks, dims.hidden, rows),
        Product(1, dims.hidden, dims.vocabulary // ranks, rows),
    )


def drafter_products(dims: Dims, batch: int, width: int, context_rows: int, ranks: int) -> tuple[Product, ...]:
    """Of its pass over width + 1 rows of each request, its lm_head, and what it is told of the rows just verified."""
    rows, layers, size = batch * (width + 1), dims.drafter_layers, dims.drafter_head_dim
    queries, cached = dims.drafter_heads * size, max(ranks, dims.drafter_kv_heads) * size
    return (
        Product(layers, dims.hidden, (queries + 2 * cached) // ranks, rows),
        Product(layers, queries // ranks, dims.hidden, rows),
        Product(layers, dims.hidden, 2 * dims.ffn // ranks, rows),
        Product(layers, dims.ffn // ranks, dims.hidden, rows),
        Product(1, dims.hidden, dims.vocabulary // ranks, batch * width),
        Product(1, len(dims.taps) * dims.hidden, dims.hidden, context_rows),  # every rank has all of it
        Product(1, dims.hidden, 2 * layers * cached // ranks, context_rows),
    )


def step(dims: Dims, arm: Arm, batch: int, context: int, machine: Machine, path: float = 6.0) -> dict[str, float]:
    """Seconds of a step by its parts. path: rows of a request that are accepted, the root counted."""
    rows = batch * (arm.tokens + 1)
    parts = dict.fromkeys(
        ("target's products", "drafter's products", "delta rule", "attention", "elementwise", "bus", "host"), 0.0
    )
    parts["target's products"] = sum(p.seconds(machine) for p in target_products(dims, rows, machine.ranks))
    if arm.width:
        found = drafter_products(dims, batch, arm.width, rows, machine.ranks)
        parts["drafter's products"] = sum(p.seconds(machine) for p in found)
        parts["attention"] += _drafter_attention(dims, batch, context, machine)
    kernels = _ours if arm.ours else _stock
    for part, seconds in kernels(dims, arm, batch, context, machine, path):
        parts[part] += seconds
    parts["elementwise"] += _elementwise(dims, rows, batch * (arm.width + 1) if arm.width else 0, machine)
    parts["bus"] = _bus(dims, arm, batch, machine)
    parts["host"] = rates.HOST * 1e-3 / machine.quality
    return parts


def _ours(dims: Dims, arm: Arm, batch: int, context: int, machine: Machine, path: float) -> Iterator[tuple[str, float]]:
    """Our kernels, each at its share. Splits of the keys are counted as the H200 would choose them."""
    shape = Step(batch, arm.tokens, context, min(path, arm.tokens + 1), machine.ranks)
    for work in works(dims, shape):
        rate = machine.rate(rates.KERNELS.get(work.kernel, {}).get(shape.side, rates.SMALL), machine.ours)
        part = "attention" if work.kernel.startswith("attention") else "delta rule"
        yield part, rate.seconds(work.launches, work.seconds(machine.card))


def _stock(
    dims: Dims, arm: Arm, batch: int, context: int, machine: Machine, path: float
) -> Iterator[tuple[str, float]]:
    """Stock's recurrence with a state for every row, what it launches around it, and its attention."""
    rows, recurrent, attending = arm.tokens + 1, dims.layers - dims.layers // 4, dims.layers // 4
    state = dims.gdn_v_heads // machine.ranks * dims.gdn_dim**2 * WIDE
    moved = recurrent * batch * (1 + rows) * state / machine.card.memory
    yield "delta rule", machine.rate(rates.STOCK_DELTA).seconds(recurrent * rows, moved)
    wide = rows > FUSED_ROWS
    launches = recurrent * (rates.WIDE_LAUNCHES if wide else rates.NARROW_LAUNCHES)
    channels = (2 * dims.gdn_k_heads + dims.gdn_v_heads) // machine.ranks * dims.gdn_dim * ACTIVATION
    moved = recurrent * batch * rows * channels * (rates.WIDE_CHANNELS if wide else rates.NARROW_CHANNELS)
    yield "delta rule", machine.rate(rates.ELEMENTWISE).seconds(launches, moved / machine.card.memory)
    cached = 2 * (context + rows) * max(1, dims.kv_heads // machine.ranks) * dims.head_dim * ACTIVATION
    moved = attending * batch * cached / machine.card.memory
    yield "attention", machine.rate(rates.STOCK_ATTENTION).seconds(3 * attending, moved)


def _drafter_attention(dims: Dims, batch: int, context: int, machine: Machine) -> float:
    keys = (dims.drafter_layers - 1) * min(context, WINDOW) + context
    cached = 2 * max(1, dims.drafter_kv_heads // machine.ranks) * dims.drafter_head_dim * ACTIVATION
    moved = batch * keys * cached / machine.card.memory
    return machine.rate(rates.DRAFTER_ATTENTION).seconds(3 * dims.drafter_layers, moved)


def _elementwise(dims: Dims, rows: int, drafted: int, machine: Machine) -> float:
    """Norms read and write two rows of the hidden size on every rank; activations and gates are split over the ranks."""
    attending = dims.layers // 4
    norms = 2 * 4 * dims.hidden
    active = 3 * dims.ffn / machine.ranks
    gates = 4 * dims.heads * dims.head_dim / machine.ranks
    of_a_row = dims.layers * (norms + active) + attending * gates + dims.vocabulary
    moved = rows * of_a_row + drafted * dims.drafter_layers * (norms + active)
    launches = 3 * dims.layers + 5 * attending + rates.SAMPLER_LAUNCHES + (7 * dims.drafter_layers if drafted else 0)
    return machine.rate(rates.ELEMENTWISE).seconds(launches, moved * ACTIVATION / machine.card.memory)


def _bus(dims: Dims, arm: Arm, batch: int, machine: Machine) -> float:
    """All-reduces after the embedding and twice a layer, of both models, and the other ranks' logits of every row verified.

    Of a drafted position candidates alone are exchanged: by our top-k, and by stock's chain with use_local_argmax_reduction.
    """
    if machine.bus is None or machine.ranks == 1:
        return 0.0
    rows, drafted = batch * (arm.tokens + 1), batch * (arm.width + 1)
    others = (machine.ranks - 1) / machine.ranks
    reductions, hidden = 2 * dims.layers + 1, dims.hidden * ACTIVATION
    moved = 2 * others * reductions * rows * hidden + others * rows * dims.vocabulary * ACTIVATION
    collectives = reductions + 1
    if arm.width:
        reductions = 2 * dims.drafter_layers + 1
        moved += 2 * others * reductions * drafted * hidden
        collectives += reductions + 1
    return collectives * machine.bus.latency + moved / machine.bus.rate
