"""How a pair behaves, in fp32 with its bf16 weights: python -m tests.pairs.measure PAIR_FOLDER

Greedy gaps of the target on the prompts, and the drafter along the target's greedy outputs: accuracy per position, the
chain's acceptance length, and the rank the drafter gave to the right token at the first miss.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.pairs import drafter as dflash
from tests.pairs import greedy, target, tokenizer
from tests.pairs.prompts import NEW_TOKENS, PROMPTS


@dataclass(frozen=True)
class Report:
    """``ranks`` [drafts, width] is the rank the drafter gave the target's token, at every position of every output;
    ``acceptance`` is 1 + accepted per draft of the chain as it runs; ``first_miss`` are the ranks at its first
    misses."""

    gaps: Tensor
    ranks: Tensor
    acceptance: float
    first_miss: Tensor

    def hits_below_top(self) -> float:
        """Share of first misses whose right token is at rank 1, 2 or 3."""
        return float((self.first_miss <= 3).float().mean())

    def lines(self) -> list[str]:
        flat = self.gaps.flatten()
        accuracy = " ".join(f"{a:.2f}" for a in (self.ranks == 0).float().mean(0).tolist())
        law = " ".join(f"{r}:{(self.first_miss == r).float().mean().item():.2f}" for r in range(1, 8))
        return [
            f"greedy gap: min {flat.min():.3f}, 1st percentile {flat.quantile(0.01):.3f}, median {flat.median():.2f}",
            f"accuracy per position: {accuracy}",
            f"chain acceptance length (K={self.ranks.shape[1]}): {self.acceptance:.2f}",
            f"rank at first miss: {law}; ranks 1 to 3: {self.hits_below_top():.2f}",
        ]


@torch.no_grad()
def drafts_along(model: Any, drafter: dflash.Drafter, prompt: list[int], output: list[int]) -> Tensor:
    """The drafter's logits at every position of ``output``: [len(output) - 1, width, vocabulary].

    Row ``i`` is anchored at output token ``i``.
    """
    ids, n = torch.tensor([prompt + output]), len(output) - 1
    taps = drafter.taps_of(model.model(ids, output_hidden_states=True).hidden_states)
    anchors = torch.arange(n)[None] + len(prompt)
    embedding = model.get_input_embeddings().weight
    hidden = drafter(taps, anchors, embedding[ids[0, anchors]], embedding[tokenizer.MASK])
    logits: Tensor = hidden[0] @ model.lm_head.weight.T
    return logits


def ranks_along(model: Any, drafter: dflash.Drafter, prompt: list[int], output: list[int]) -> Tensor:
    """Rank of the target's token in each slot of each draft along ``output``: int64 [len(output) - 1, width].

    Slots past the output's end are -1.
    """
    logits = drafts_along(model, drafter, prompt, output)
    ids = torch.tensor(output)
    at = torch.arange(len(logits))[:, None] + 1 + torch.arange(drafter.width)
    inside = at < len(ids)
    wanted = ids[at.clamp(max=len(ids) - 1)]
    ranks = (logits > logits.gather(-1, wanted[..., None])).sum(-1)
    return torch.where(inside, ranks, -1)


def walk(ranks: Tensor) -> tuple[int, int, list[int]]:
    """Run the chain down one output: (drafts, accepted tokens, ranks at the first misses), while whole drafts fit."""
    drafts, accepted, misses, at = 0, 0, [], 0
    while at < len(ranks) and int(ranks[at].min()) >= 0:
        row = ranks[at].tolist()
        hit = next((i for i, rank in enumerate(row) if rank), len(row))
        misses += row[hit : hit + 1]
        drafts, accepted, at = drafts + 1, accepted + hit, at + hit + 1
    return drafts, accepted, misses


def measure(pair: Path, texts: tuple[str, ...] = PROMPTS) -> Report:
    model = target.load(pair / "target")
    config = json.loads((pair / "drafter" / "config.json").read_text())
    drafter = dflash.load(pair / "drafter", config)
    made = greedy.decode(model, texts, NEW_TOKENS)
    tables = [ranks_along(model, drafter, p, o) for p, o in zip(made.prompts, made.outputs, strict=True)]
    walks = [walk(table) for table in tables]
    rows = torch.cat(tables)
    drafts, accepted = sum(w[0] for w in walks), sum(w[1] for w in walks)
    first_miss = torch.tensor([rank for w in walks for rank in w[2]])
    return Report(made.gaps, rows[rows.min(1).values >= 0], 1 + accepted / drafts, first_miss)


if __name__ == "__main__":
    print("\n".join(measure(Path(sys.argv[1])).lines()))
