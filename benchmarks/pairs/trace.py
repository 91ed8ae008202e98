"""The drafter beside texts that the target wrote, offline: its top-k at every position against the target's choice there.

One pass of target and drafter over each text gives, for a block anchored at every token of the answer, the drafter's top
ranks and their log-probabilities in each slot, the rank it gave to the target's token, and how clear the target's own
choice was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from benchmarks.pairs import dflash, store, training
from benchmarks.pairs.train_drafter import load_target

RANKS = 16


@dataclass(frozen=True)
class Trace:
    """One answer of n tokens; block i is anchored at its token i.

    ids, logprobs: [n - 1, width, RANKS], the drafter's best tokens; ranks: int [n - 1, width], the rank of the target's
    token, RANKS where it is below them, -1 past the end; entropy: [n - 1, width] in nats; gaps: [n], the target's
    top-1/top-2 logit gap at each token.
    """

    ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int64]
    entropy: npt.NDArray[np.float32]
    gaps: npt.NDArray[np.float32]


@torch.no_grad()
def trace(target: Any, drafter: dflash.Drafter, prompt: Sequence[int], answer: Sequence[int], autocast: Any) -> Trace:
    """The trace of one answer of two tokens or more."""
    device = next(drafter.parameters()).device
    ids = torch.tensor([[*prompt, *answer]], device=device)
    n, width = len(answer), drafter.width
    made = target.model(ids, output_hidden_states=True)
    top = target.lm_head(made.last_hidden_state[0, len(prompt) - 1 : -1]).float().topk(2).values
    anchors = torch.arange(n - 1, device=device)[None] + len(prompt)
    embedding = target.get_input_embeddings().weight
    with autocast:
        hidden = drafter(
            drafter.taps_of(made.hidden_states), anchors, embedding[ids[0, anchors]], embedding[drafter.mask_token]
        )[0]
        logits = F.linear(hidden, target.lm_head.weight.to(hidden.dtype))
    logprobs = logits.float().log_softmax(-1)
    best = logprobs.topk(RANKS, dim=-1)
    at = torch.arange(n - 1, device=device)[:, None] + 1 + torch.arange(width, device=device)
    wanted = torch.tensor(answer, device=device)[at.clamp(max=n - 1)]
    found = best.indices == wanted[..., None]
    ranks = torch.where(found.any(-1), found.int().argmax(-1), RANKS)
    ranks = torch.where(at < n, ranks, -1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return Trace(
        best.indices.cpu().numpy(), best.values.cpu().numpy(), ranks.cpu().numpy().astype(np.int64),
        entropy.cpu().numpy(), (top[:, 0] - top[:, 1]).cpu().numpy(),
    )  # fmt: skip


def traces(pair: Path, texts: store.Sequences, device_name: str) -> list[Trace | None]:
    """Traces of all texts in order, None where an answer is shorter than two tokens."""
    place = training.device_of(device_name)
    target = load_target(pair / "target", place["device"])
    drafter = dflash.load(pair / "drafter").to(place["device"])
    found: list[Trace | None] = []
    for row, prompt in zip(texts.rows, texts.prompts, strict=True):
        answer = row[prompt:]
        found.append(trace(target, drafter, row[:prompt], answer, place["autocast"]) if len(answer) > 1 else None)
    return found


def hit_rates(found: Sequence[Trace]) -> dict[str, Any]:
    """Conditional rates by depth (1 first) over every block.

    `spine` [width][RANKS]: the target's token has this rank, given that all earlier slots were right at rank 0; `blocks`:
    how many such blocks there were; `after_sibling`: rank 0 is right, given that the slot before was the first miss and
    its token had a rank of 1 or more in the top ranks; `entropy` and `confidence` (mean probability of rank 0) on the
    spine.
    """
    ranks = np.concatenate([t.ranks for t in found])
    entropy, top = (
        np.concatenate([t.entropy for t in found]),
        np.exp(np.concatenate([t.logprobs[..., 0] for t in found])),
    )
    width = ranks.shape[1]
    spine, blocks, after, mean_entropy, confidence = [], [], [], [], []
    on_spine = np.ones(len(ranks), dtype=bool)
    sibling = np.zeros(len(ranks), dtype=bool)
    for depth in range(width):
        inside = ranks[:, depth] >= 0
        here, aside = on_spine & inside, sibling & inside
        counted = np.bincount(ranks[here, depth], minlength=RANKS + 1)[:RANKS]
        spine.append((counted / max(1, here.sum())).round(4).tolist())
        blocks.append(int(here.sum()))
        after.append(round(float((ranks[aside, depth] == 0).mean()), 4) if aside.any() else None)
        mean_entropy.append(round(float(entropy[here, depth].mean()), 4) if here.any() else None)
        confidence.append(round(float(top[here, depth].mean()), 4) if here.any() else None)
        sibling = here & (ranks[:, depth] >= 1) & (ranks[:, depth] < RANKS)
        on_spine = here & (ranks[:, depth] == 0)
    return {"spine": spine, "blocks": blocks, "after_sibling": after, "entropy": mean_entropy, "confidence": confidence}


def save(by_heat: dict[float, Sequence[Trace]], path: Path, limit: int) -> dict[float, int]:
    """What simulate.py needs of traces, by temperature, in one file of at most `limit` bytes.

    Ranks, and log-probabilities rounded to 16 bits. Of every temperature the same share of its texts, as
    many as fit; says how many.
    """
    share = 1.0
    while True:
        kept = {heat: list(found)[: max(2, int(share * len(found)))] for heat, found in by_heat.items() if found}
        held = {}
        for heat, found in kept.items():
            held[f"{heat}/ends"] = np.cumsum([len(t.ranks) for t in found])
            held[f"{heat}/ranks"] = np.concatenate([t.ranks for t in found]).astype(np.int8)
            held[f"{heat}/logprobs"] = np.concatenate([t.logprobs for t in found]).astype(np.float16)
        np.savez_compressed(path, **held)
        size = path.stat().st_size
        if size <= limit or all(len(found) <= 2 for found in kept.values()):
            return {heat: len(found) for heat, found in kept.items()}
        share *= min(0.9, 0.98 * limit / size)


def load(path: Path) -> dict[float, list[Trace]]:
    """Traces of a file of `save`, by temperature; their token ids, entropies and gaps are not in it and come back empty."""
    found: dict[float, list[Trace]] = {}
    with np.load(path) as data:
        for heat in [name.removesuffix("/ends") for name in data.files if name.endswith("/ends")]:
            ends = data[f"{heat}/ends"][:-1]
            ranks = np.split(data[f"{heat}/ranks"].astype(np.int64), ends)
            logprobs = np.split(data[f"{heat}/logprobs"].astype(np.float32), ends)
            none = np.zeros(0, np.float32)
            found[float(heat)] = [
                Trace(none.astype(np.int64), p, r, none, none) for p, r in zip(logprobs, ranks, strict=True)
            ]
    return found
