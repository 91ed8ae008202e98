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
