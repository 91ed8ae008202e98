"""Where the top-k over a vocabulary keeps what its chunks found, and how a vocabulary is cut."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

MAX_RANKS = 64
"""Every rank is one more pass over a tile in registers."""

BLOCK, TILES, WARPS = 256, 16, 1
"""On a GPU: elements of a tile (one load of 16 bytes a lane in 16 bits), tiles of a chunk, warps of its program.

One warp reduces without shared memory and barriers. 15 rows of 248320 are then 915 warps, 7 for each SM of an H200.
"""

MERGE_WARPS = 4
"""Of the program that merges a row: of 248320 logits, 16 candidates of each of 61 chunks."""

WIDE_BLOCK, WIDE_NUMEL = 4096, 1 << 19
"""In the interpreter an operation costs the same at any size: elements of a row's tile, and of all rows of a program."""


@dataclass(frozen=True)
class TopkScratch:
    """What the chunks of the vocabulary leave for the merge. L rows, C chunks, K the power of two that holds the ranks.

    keys  [L, C, K] int64, the chunk's candidates, descending: value and complemented id; the lowest integer: none
    high  [L, C]    float32, its largest logit
    total [L, C]    float32, its sum of exponentials above that
    first: the id of the vocabulary's first token: of a rank's shard, where the shard begins
    block, tiles, warps: a chunk is `tiles` tiles of `block` elements, read by `warps` warps
    wide: large tiles and all rows in one program, for Triton's interpreter
    """

    keys: torch.Tensor
    high: torch.Tensor
    total: torch.Tensor
    vocabulary: int
    ranks: int
    block: int
    tiles: int
    warps: int
    wide: bool
    first: int = 0

    @classmethod
    def allocate(
        cls,
        rows: int,
        vocabulary: int,
        ranks: int,
        device: torch.device | str,
        *,
        block: int | None = None,
        tiles: int | None = None,
        warps: int = WARPS,
        first: int = 0,
    ) -> TopkScratch:
        """Scratch for at most `rows` rows. `block`, `tiles` (powers of two) and `warps` replace a GPU's.

        Raises ValueError unless 1 <= ranks <= min(vocabulary, MAX_RANKS) and a chunk holds `ranks` columns and at most
        65536 elements.
        """
        if not 1 <= ranks <= min(vocabulary, MAX_RANKS):
            raise ValueError(f"{ranks} ranks of {vocabulary} tokens: at least 1, at most {min(vocabulary, MAX_RANKS)}")
        wide = torch.device(device).type == "cpu"
        side = triton.next_power_of_2(ranks)
        if block is None:
            block = max(side, min(WIDE_BLOCK, triton.next_power_of_2(vocabulary))) if wide else BLOCK
        tiles = min(tiles or TILES, triton.next_power_of_2(triton.cdiv(vocabulary, block)))
        if block < side or block * tiles > 1 << 16:
            raise ValueError(f"a chunk of {tiles} x {block} elements does not hold {ranks} ranks within 65536 elements")
        chunks = triton.cdiv(vocabulary, block * tiles)
        return cls(
            keys=torch.zeros(rows, chunks, side, dtype=torch.int64, device=device),
            high=torch.zeros(rows, chunks, dtype=torch.float32, device=device),
            total=torch.zeros(rows, chunks, dtype=torch.float32, device=device),
            vocabulary=vocabulary,
            ranks=ranks,
            block=block,
            tiles=tiles,
            warps=warps,
            wide=wide,
            first=first,
        )

    def rows_at_once(self, rows: int) -> int:
        """Rows of one program, of a batch of this many; of none as of one, so that no program is launched."""
        return int(min(triton.next_power_of_2(max(1, rows)), WIDE_NUMEL // self.block)) if self.wide else 1
