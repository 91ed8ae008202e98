"""What one verify step of a tree must move and compute, kernel by kernel, and the time that two cards' peak rates leave for it.

    python -m benchmarks.gpu.roofline --batch 1,8 --nodes 15,31,63 --context 4096

An estimate from bytes and FLOPs, not a measurement: every tensor is counted once per kernel, whatever the caches make of it,
launches are free, and peaks are the data sheets'. What a kernel really takes is measured by benchmarks.gpu.kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.gpu.dims import QWEN36_27B, Dims
from ddtree_ext.kernels.attention_scratch import MAX_SPLITS, PARTIALS, Tiles, soonest
from ddtree_ext.kernels.topk_scratch import BLOCK, TILES

ACTIVATION, WIDE = 2, 4
"""Bytes of bfloat16 and float32."""
CONV_WIDTH, DRAFTER_WIDTH, RANKS = 4, 15, 16
PROCESSORS, BLOCK_MEMORY = 132, 227 << 10
"""Of an H200: attention splits its keys so that they are full. Bytes of shared memory that a block may use there."""
CHUNK = BLOCK * TILES
"""Logits of a row that one program of the top-k reads."""


@dataclass(frozen=True)
class Card:
    """Peak rates: memory in bytes/s, dense matrix products in FLOP/s (bf16, tf32) and plain float32."""

    name: str
    memory: float
    bf16: float
    tf32: float
    fp32: float


H200 = Card("H200", 4.8e12, 989e12, 494e12, 67e12)
A6000 = Card("RTX A6000", 768e9, 155e12, 77e12, 38.7e12)


@dataclass(frozen=True)
class Work:
    """One kernel in one step: launches, bytes read and written, and FLOPs by the unit that does them, of all launches."""

    kernel: str
    launches: int
    bytes: float
    bf16: float = 0.0
    tf32: float = 0.0
    fp32: float = 0.0

    def seconds(self, card: Card) -> float:
        """The longer of moving and computing."""
        return max(self.bytes / card.memory, self.bf16 / card.bf16 + self.tf32 / card.tf32 + self.fp32 / card.fp32)

    def bound(self, card: Card) -> str:
        return "memory" if self.bytes / card.memory >= self.seconds(card) else "compute"


@dataclass(frozen=True)
class Step:
    """batch requests, each with a tree of `nodes` and a context of `context` tokens, `path` rows of it accepted (root counted).

    ranks: tensor-parallel ranks; a Step's work is one rank's.
    """

    batch: int
    nodes: int
    context: int
    path: float = 6.0
    ranks: int = 1

    @property
    def rows(self) -> int:
        """Rows of a tree: its nodes and the root."""
        return self.nodes + 1

    @property
    def side(self) -> int:
        """Rows of the tiles that hold a tree."""
        return max(16, 1 << (self.rows - 1).bit_length())


def splits(dims: Dims, step: Step) -> int:
    """Parts that a request's keys are attended in."""
    kv_heads = max(1, dims.kv_heads // step.ranks)
    members = step.rows * (dims.heads // step.ranks // kv_heads)
    tiles = Tiles.on(BLOCK_MEMORY, PROCESSORS, dims.head_dim, ACTIVATION, members)
    limit = max(1, min(MAX_SPLITS, max(step.batch, PARTIALS) // step.batch))
    return soonest(tiles, step.batch * kv_heads, members, limit)[1]


def works(dims: Dims, step: Step) -> tuple[Work, ...]:
    """Every kernel of ddtree_ext that a step launches on one rank, in the order of the step."""
    return (
        *_rows(dims, step),
        *_delta(dims, step),
        *_attention(dims, step),
        *_commit(dims, step),
        *_draft(dims, step),
        *_grow(dims, step),
    )


def _delta(dims: Dims, step: Step) -> Iterator[Work]:
    """The convolution, both kernels of the delta rule, and the norm of what they give."""
    layers, cases = dims.layers - dims.layers // 4, step.batch * (dims.layers - dims.layers // 4)
    k_heads, v_heads, size = dims.gdn_k_heads // step.ranks, dims.gdn_v_heads // step.ranks, dims.gdn_dim
    rows, side, channels = step.rows, step.side, (2 * k_heads + v_heads) * size
    moved = cases * (3 * rows + CONV_WIDTH - 1) * channels * ACTIVATION + layers * CONV_WIDTH * channels * ACTIVATION
    yield Work("conv_tree", layers, moved, fp32=cases * rows * channels * (2 * CONV_WIDTH + 4))

    gates, squares = rows * v_heads * WIDE, 2 * v_heads * side * side * WIDE
    keys = 2 * rows * k_heads * size
    moved = keys * (ACTIVATION + WIDE) + 2 * rows * v_heads * ACTIVATION + 3 * gates + squares
    products = v_heads * 2 * (2 * side * side * size)
    yield Work(
        "solve_tree", layers, cases * moved, bf16=cases * products, tf32=cases * v_heads * 3 * inverse_flops(side)
    )

    values = rows * v_heads * size
    moved = v_heads * size * size * WIDE + keys * WIDE + squares + 2 * gates + values * (ACTIVATION + WIDE + ACTIVATION)
    products = v_heads * 2 * (2 * side * size * size + 2 * side * side * size)
    yield Work("apply_tree", layers, cases * moved, tf32=cases * 3 * products)

    moved = cases * 3 * values * ACTIVATION + layers * size * ACTIVATION
    yield Work("gated_norm", layers, moved, fp32=cases * 10 * values)


def inverse_flops(side: int) -> int:
    """Of a triangular inverse, merged block by block: two products of [s, s] a pair, tiles of 16 at the first levels."""
    flops = 3 * 2 * (side // 16) * 2 * 16**3
    size = 16
    while size < side:
        flops += (side // (2 * size)) * 2 * 2 * size**3
        size *= 2
    return flops


def _attention(dims: Dims, step: Step) -> Iterator[Work]:
    layers = dims.layers // 4
    heads, kv_heads = dims.heads // step.ranks, max(1, dims.kv_heads // step.ranks)
    keys, out = step.context + step.rows, step.rows * heads * dims.head_dim
    partial = splits(dims, step) * (out + step.rows * heads) * WIDE
    moved = 2 * keys * kv_heads * dims.head_dim * ACTIVATION + out * ACTIVATION + partial
    yield Work("attention, splits", layers, layers * step.batch * moved, bf16=layers * step.batch * 4 * keys * out)
    yield Work("attention, combine", layers, layers * step.batch * (partial + out * ACTIVATION))


def _commit(dims: Dims, step: Step) -> Iterator[Work]:
    """One launch each; the root's keys and values stay where they are."""
    attending, recurrent = dims.layers // 4, dims.layers - dims.layers // 4
    kv_heads = max(1, dims.kv_heads // step.ranks)
    moved = 2 * 2 * (step.path - 1) * kv_heads * dims.head_dim * ACTIVATION
    yield Work("compact_kv", 1, step.batch * attending * moved)
    k_heads, v_heads, size = dims.gdn_k_heads // step.ranks, dims.gdn_v_heads // step.ranks, dims.gdn_dim
    state = v_heads * size * size
    stash = step.path * (k_heads * size + v_heads * size + v_heads) * WIDE
    window = 3 * (CONV_WIDTH - 1) * (2 * k_heads + v_heads) * size * ACTIVATION
    cases = step.batch * recurrent
    yield Work("commit_tree", 1, cases * (2 * state * WIDE + stash + window), fp32=cases * step.path * 3 * state)


def _rows(dims: Dims, step: Step) -> Iterator[Work]:
    """What begins a step. vLLM keeps a cache group for every Gated DeltaNet layer of the 27B."""
    tree = step.batch * step.rows
    yield Work("state_slots", 1, (dims.layers - dims.layers // 4) * step.batch * 2 * 4)
    yield Work("expand_rows", 1, tree * 2 * (4 + 4 + 8))  # depth, parent, word; position, parent, word


def _draft(dims: Dims, step: Step) -> Iterator[Work]:
    """The walk, and the path's hidden states for the drafter."""
    tree = step.batch * step.rows
    yield Work("walk_trees", 1, tree * (8 + 8 + 4 + 8 + 4))
    yield Work("count_trees", 1, tree * 4 + step.batch * (step.path + 3) * 8)
    yield Work("gather_rows", 1, step.batch * len(dims.taps) * 2 * step.path * dims.hidden * ACTIVATION)


def _grow(dims: Dims, step: Step) -> Iterator[Work]:
    """The drafter's best tokens, each rank's of its shard of the vocabulary, and the next tree, which every rank grows."""
    drafted, tree = step.batch * DRAFTER_WIDTH, step.batch * step.rows
    shard = dims.vocabulary // step.ranks
    logits, chunks = drafted * shard, drafted * -(-shard // CHUNK)
    candidates, best = chunks * (RANKS * 8 + 2 * WIDE), drafted * RANKS * (4 + 8)
    # Of each logit: its distance to the maximum, one exponential, the sum, the new maximum.
    yield Work("topk, chunks", 1, logits * ACTIVATION + candidates, fp32=logits * 6)
    if step.ranks > 1:
        yield Work("topk, narrow", 1, candidates + drafted * (RANKS + 1) * 8)
        candidates = step.ranks * drafted * (RANKS + 1) * 8
    yield Work("topk, merge", 1, candidates + best)
    yield Work("build_trees", 1, best + tree * (8 + 4 + 4 + 8))


def table(dims: Dims, step: Step, cards: tuple[Card, ...]) -> str:
    """One line per kernel and their sum; microseconds at each card's peaks."""
    head = f"{'kernel':<19} {'launches':>8} {'MB':>9} {'GFLOP':>8}"
    lines = [head + "".join(f" {card.name + ', us':>15} {'bound':>8}" for card in cards)]
    total = [0.0 for _ in cards]
    for work in works(dims, step):
        flops = (work.bf16 + work.tf32 + work.fp32) / 1e9
        cells = ""
        for index, card in enumerate(cards):
            total[index] += work.seconds(card)
            cells += f" {work.seconds(card) * 1e6:15.1f} {work.bound(card):>8}"
        lines.append(f"{work.kernel:<19} {work.launches:8} {work.bytes / 1e6:9.2f} {flops:8.2f}{cells}")
    lines.append(f"{'together':<46}" + "".join(f" {seconds * 1e6:15.1f} {'':>8}" for seconds in total))
    return "\n".join(lines)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="bytes and FLOPs of a verify step, kernel by kernel, and the least time for them"
    )
    parser.add_argument("--batch", type=numbers, default=(1, 8))
    parser.add_argument("--nodes", type=numbers, default=(15, 31, 63))
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--path", type=float, default=6.0, help="accepted rows, the root counted")
    given = parser.parse_args()
    print("An estimate from bytes and FLOPs at peak rates, not a measurement; Qwen3.6-27B's dimensions.")
    for batch in given.batch:
        for nodes in given.nodes:
            for card, ranks in ((H200, 1), (A6000, 2)):
                step = Step(batch, nodes, given.context, given.path, ranks)
                print(f"\nbatch {batch}, {nodes} nodes, context {given.context}, {ranks} x {card.name}, each rank:")
                print(table(QWEN36_27B, step, (card,)))


if __name__ == "__main__":
    main()
