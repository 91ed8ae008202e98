"""Token sequences on disk: one .npz of a flat array and where each sequence and its prompt end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """`rows` are token ids, prompt first; `prompts` how many of them are the prompt; `heats` the temperature each was
    written at.
    """

    rows: tuple[list[int], ...]
    prompts: tuple[int, ...]
    heats: tuple[float, ...]

    @property
    def tokens(self) -> int:
        """Tokens that are not prompts."""
        return sum(len(row) - prompt for row, prompt in zip(self.rows, self.prompts, strict=True))

    def chosen(self, indices: Sequence[int]) -> Sequences:
        return Sequences(
            tuple(self.rows[i] for i in indices),
            tuple(self.prompts[i] for i in indices),
            tuple(self.heats[i] for i in indices),
        )

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flat = np.array([token for row in self.rows for token in row], dtype=np.int32)
        ends = np.cumsum([len(row) for row in self.rows])
        fresh = path.with_suffix(".new.npz")
        np.savez_compressed(fresh, flat=flat, ends=ends, prompts=np.array(self.prompts), heats=np.array(self.heats))
        fresh.replace(path)


def load(path: Path) -> Sequences:
    with np.load(path) as data:
        rows = np.split(data["flat"], data["ends"][:-1])
        return Sequences(
            tuple(row.tolist() for row in rows), tuple(data["prompts"].tolist()), tuple(data["heats"].tolist())
        )


def padded(rows: Sequence[Sequence[int]], length: int, pad: int = 0) -> tuple[Tensor, Tensor]:
    """Rows cut or padded on the right to `length`: ids int64 [rows, length], and how long each is [rows]."""
    ids = torch.full((len(rows), length), pad, dtype=torch.int64)
    for i, row in enumerate(rows):
        ids[i, : min(len(row), length)] = torch.tensor(row[:length])
    return ids, torch.tensor([min(len(row), length) for row in rows])
