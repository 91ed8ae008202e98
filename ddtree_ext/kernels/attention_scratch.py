"""Where attention over tree rows keeps the partial results of its splits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MAX_SPLITS = 16
"""Splits of one request's keys at most: more would make the partial outputs the larger traffic."""

PARTIALS = 64
"""Requests times splits for which scratch is kept, if the request slots alone do not ask for more."""

HEAD_SIZES = (32, 64, 128, 256)


@dataclass(frozen=True)
class AttentionScratch:
    """Partial results of the splits, shared by all layers. P = requests x splits, N rows, Hq query heads, D head size.

    partial [P, N, Hq, D] float32, every split's normalised output
    lse     [P, N, Hq]    float32, base-2 log-sum-exp of its scores; -inf: the split saw no key
    splits_limit: splits per request at most
    wide: one tile for all of a request's rows, for Triton's interpreter, where an operation costs the same at any size
    """

    partial: torch.Tensor
    lse: torch.Tensor
    kv_heads: int
    splits_limit: int
    wide: bool = False

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
        splits: int | None = None,
        wide: bool = False,
    ) -> AttentionScratch:
        """Scratch for batches of at most `slots` requests of `rows` tree rows; `splits` fixes the splits per request.

        On a GPU a small batch is split up to MAX_SPLITS times and a large one less, so scratch does not grow with both.
        Off a GPU there is nothing to spread, and two splits are taken.
        Raises ValueError for head sizes and counts that the kernel does not take.
        """
        if head_size not in HEAD_SIZES:
            raise ValueError(f"tree attention takes head sizes {HEAD_SIZES}, not {head_size}")
        if heads % kv_heads:
            raise ValueError(f"{heads} query heads do not divide among {kv_heads} KV heads")
        if splits is None and torch.device(device).type == "cuda":
            limit, units = MAX_SPLITS, max(slots, PARTIALS)
        else:
            limit = splits or 2
            units = slots * limit
        return cls(
            partial=torch.zeros(units, rows, heads, head_size, dtype=torch.float32, device=device),
            lse=torch.zeros(units, rows, heads, dtype=torch.float32, device=device),
            kv_heads=kv_heads,
            splits_limit=limit,
            wide=wide,
        )

    def splits(self, requests: int) -> int:
        """Splits for a batch of this many requests: a power of two, so that few variants are compiled."""
        most = max(1, min(self.splits_limit, int(self.partial.shape[0]) // requests))
        return 1 << (most.bit_length() - 1)
