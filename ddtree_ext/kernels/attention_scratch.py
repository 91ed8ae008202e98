"""Where attention over tree rows keeps the partial results of its splits, and how it is laid out on a device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import torch
import triton

MAX_SPLITS = 16
"""Splits of one request's keys at most: more would make the partial outputs the larger traffic."""

PARTIALS = 64
"""Requests times splits for which scratch is kept, if the request slots alone do not ask for more."""

HEAD_SIZES = (32, 64, 128, 256)

WIDER = 1.5
"""How many times as long a tile of twice the queries takes: between 1.3 and 1.7, as eight times 16 rows and 32 rows alone
took on an H200."""

ROOMY = 193 << 10
"""Shared memory of a block, bytes, that the larger tiles take: 128 queries and two tiles of K and V, each of 32 KB."""


@dataclass(frozen=True)
class Tiles:
    """queries (row and head of a KV head's group) and keys of a tile; `combined` of a tile of the second kernel.

    warps and stages of a program of the first kernel, and the programs that a device runs at a time; `cost` compares the
    times of two layouts for as many keys.
    """

    queries: int
    keys: int
    combined: int
    warps: int
    stages: int
    programs: int
    cost: float = 1.0

    @classmethod
    def of(cls, device: torch.device, head_size: int, itemsize: int, members: int, rows: int) -> tuple[Tiles, ...]:
        """What there is to choose from for `members` queries and `rows` rows of all heads, at most; `itemsize` bytes a number.

        Triton's interpreter takes as long for an operation at any size: one tile for everything there.
        """
        if device.type != "cuda":
            return (
                cls(
                    max(16, triton.next_power_of_2(members)),
                    128,
                    triton.next_power_of_2(rows),
                    warps=4,
                    stages=2,
                    programs=2,
                ),
            )
        properties = torch.cuda.get_device_properties(device)
        memory, processors = properties.shared_memory_per_block_optin, properties.multi_processor_count
        return cls.on(memory, processors, head_size, itemsize, members)

    @classmethod
    def on(cls, memory: int, processors: int, head_size: int, itemsize: int, members: int) -> tuple[Tiles, ...]:
        """For a GPU with so many multiprocessors, whose blocks may use `memory` bytes of shared memory: a newer one
        than the H200 may have less (99 KB for sm_120).

        The block table is read a stage ahead of the keys that it leads to, so two stages would overlap nothing. Within the
        99 KB of sm_86 three hold two tiles of K and V of 16 KB each, and 64 queries of 32 KB at most.
        """
        line = head_size * itemsize
        queries = min(64, (32 << 10) // line, max(16, triton.next_power_of_2(members)))
        warps = 8 if line > 256 else 4  # fewer would spill the accumulators
        keys = min(64, max(16, (16 << 10) // line))
        if memory < ROOMY or line > 512:
            return (cls(queries, keys, 4, warps, stages=3, programs=processors),)
        few = cls(queries, min(64, 2 * keys), 4, warps, stages=3, programs=processors)
        # Twice the queries read the keys half as often, where enough other programs keep the device full.
        return (few, replace(few, queries=128, warps=8, cost=WIDER)) if members > queries == 64 else (few,)


@dataclass(frozen=True)
class AttentionScratch:
    """Partial results of the splits, shared by all layers. P = requests x splits, N rows, Hq query heads, D head size.

    partial [P, N, Hq, D] float32, every split's normalised output
    lse     [P, N, Hq]    float32, base-2 log-sum-exp of its scores; -inf: the split saw no key
    splits_limit: splits per request at most
    """

    partial: torch.Tensor
    lse: torch.Tensor
    kv_heads: int
    splits_limit: int
    tiles: tuple[Tiles, ...]

    @classmethod
    def allocate(
        cls,
        slots: int,
        rows: int,
        heads: int,
        kv_heads: int,
        head_size: int,
        device: torch.device | str,
        *,
        itemsize: int = 2,
        splits: int | None = None,
        tiles: tuple[Tiles, ...] = (),
    ) -> AttentionScratch:
        """Scratch for batches of at most `slots` requests of `rows` tree rows, of numbers of `itemsize` bytes.

        On a GPU a small batch is split up to MAX_SPLITS times and a large one less, so scratch does not grow with both.
        Off a GPU there is nothing to spread. `splits` and `tiles`: those and no others.
        Raises ValueError for head sizes and counts that the kernel does not take.
        """
        if head_size not in HEAD_SIZES:
            raise ValueError(f"tree attention takes head sizes {HEAD_SIZES}, not {head_size}")
        if heads % kv_heads:
            raise ValueError(f"{heads} query heads do not divide among {kv_heads} KV heads")
        device = torch.device(device)
        if splits is None and device.type == "cuda":
            limit, units = MAX_SPLITS, max(slots, PARTIALS)
        else:
            limit = splits or 1
            units = slots * limit
        return cls(
            partial=torch.zeros(units, rows, heads, head_size, dtype=torch.float32, device=device),
            lse=torch.zeros(units, rows, heads, dtype=torch.float32, device=device),
            kv_heads=kv_heads,
            splits_limit=limit,
            tiles=tiles or Tiles.of(device, head_size, itemsize, rows * (heads // kv_heads), rows * heads),
        )

    def layout(self, requests: int, members: int) -> tuple[Tiles, int]:
        """Tiles and splits for a batch of so many requests, each of `members` queries a KV head."""
        limit = max(1, min(self.splits_limit, int(self.partial.shape[0]) // requests))
        if self.partial.device.type != "cuda":
            return self.tiles[0], limit
        return soonest(self.tiles, requests * self.kv_heads, members, limit)


@cache
def soonest(tiles: tuple[Tiles, ...], heads: int, members: int, limit: int) -> tuple[Tiles, int]:
    """Which layout, in how many splits, ends soonest for so many KV heads of requests, each of `members` queries.

    A split is the shorter the more there are, and all take as many turns as their number fills. Of equals, the fewest
    splits, and then the larger tile: every split leaves partial results to be combined, and every tile reads its keys.
    Remembered, for every layer of an eager step asks the same.
    """

    def order(choice: tuple[Tiles, int]) -> tuple[float, int, int]:
        layout, splits = choice
        parts = heads * -(-members // layout.queries)
        return layout.cost * -(-parts * splits // layout.programs) / splits, splits, -layout.queries

    return min(product(tiles, range(1, limit + 1)), key=order)
