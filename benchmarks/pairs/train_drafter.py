"""Trains a DFlash drafter on text that its target wrote: python -m benchmarks.pairs.train_drafter PAIR --minutes 10 [--piece
8]

PAIR holds target/ and text.npz; writes PAIR/drafter, and PAIR/drafter.pt, from which a second call goes on. The published
recipe: random anchors in the target's answers, one block an anchor, its first token real and the rest MASK; cross-entropy
weighted by slot; embedding and lm_head frozen; the target's hidden states computed beside; the last norm begins as the
target's. AdamW at 6e-4 with warm-up and a cosine.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.pairs import curve, dflash, store, training

LOOK = 15.0
"""Seconds between two looks at held-out text; each also saves a checkpoint."""
HELD_OUT = 0.03
"""Share of the sequences that only the curve sees."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a drafter's training: `batch` sequences of `length` tokens with `anchors` blocks each; `layers`, `taps` and
    `ffn`.
    """

    layers: int
    taps: int
    ffn: int
    batch: int = 32
    length: int = 384
    anchors: int = 32
    rate: float = 6e-4


class Blocks(nn.Module):
    """Drafter and frozen head: the loss of a batch of anchors."""

    def __init__(self, drafter: dflash.Drafter, embedding: Tensor, head: Tensor) -> None:
        super().__init__()
        self.drafter = drafter
        self.frozen = (embedding, head)

    def forward(self, taps: Tensor, ids: Tensor, lengths: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and a bool [batch * n, width] of slots whose first choice is right (False past the end)."""
        embedding, head = self.frozen
        width = self.drafter.width
        hidden = self.drafter(taps, anchors, embedding[ids.gather(1, anchors)], embedding[self.drafter.mask_token])
        at = anchors[..., None] + 1 + torch.arange(width, device=ids.device)
        live = (at < lengths[:, None, None]).flatten(0, 1)
        wanted = ids.gather(1, at.flatten(1).clamp(max=ids.shape[1] - 1)).view(-1, width)
        logits = F.linear(hidden.flatten(0, 1), head.to(hidden.dtype))
        return dflash.loss(logits, wanted, live), (logits.argmax(-1) == wanted) & live


def anchors_of(prompts: Tensor, lengths: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` random positions a row, int64 [rows, count]: from the first token after the prompt to the last but one of the
    row.
    """
    first = prompts.clamp(min=1)
    last = (lengths - 2).maximum(first)
    share = torch.rand((len(prompts), count), generator=generator)
    return (first[:, None] + share * (last - first + 1)[:, None]).long().minimum(last[:, None])


class Feed:
    """Batches by step, the same for the same step, so that a resumed run sees what it would have seen."""

    def __init__(self, text: store.Sequences, shape: Shape, seed: int) -> None:
        self.text, self.shape, self.seed = text, shape, seed

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """ids [batch, length], lengths [batch], anchors [batch, n]."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        rows = torch.randint(len(self.text.rows), (self.shape.batch,), generator=generator).tolist()
        chosen = self.text.chosen(rows)
        ids, lengths = store.padded(chosen.rows, self.shape.length)
        return ids, lengths, anchors_of(torch.tensor(chosen.prompts), lengths, self.shape.anchors, generator)


def split(text: store.Sequences, length: int) -> tuple[store.Sequences, store.Sequences]:
    """(training, held out), by position, so that every process splits alike.

    Left out: sequences with fewer than two tokens of answer within `length`.
    """
    long_enough = [i for i, row in enumerate(text.rows) if min(len(row), length) - text.prompts[i] >= 2]
    every = max(2, round(1 / HELD_OUT))
    return text.chosen([i for i in long_enough if i % every]), text.chosen([i for i in long_enough if i % every == 0])


def load_target(folder: Path, device: torch.device) -> Any:
    """The target with frozen weights: bf16 on a GPU, fp32 elsewhere."""
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval().requires_grad_(False)


def compiled(module: nn.Module, device: torch.device) -> Any:
    """torch.compile where a GPU pays for it, and the module itself should compiling fail."""
    if device.type != "cuda":
        return module
    import torch._dynamo

    torch._dynamo.config.suppress_errors = True
    return torch.compile(module, dynamic=False)


def train(pair: Path, shape: Shape, clock: training.Clock, mask_token: int, device_name: str) -> bool:
    """Trains for one piece; True when the whole time is spent and PAIR/drafter is written."""
    torch.manual_seed(3)
    torch.set_float32_matmul_precision("high")
    place = training.device_of(device_name)
    device, autocast = place["device"], place["autocast"]
    target = load_target(pair / "target", device)
    c = dflash.config(
        target.config.to_dict(), mask_token=mask_token, layers=shape.layers, tap_count=shape.taps, ffn=shape.ffn
    )
    drafter = dflash.Drafter(c).to(device)
    with torch.no_grad():  # what the target's last norm makes of ones is its weight, in every convention of norms
        drafter.norm.weight.copy_(target.model.norm(torch.ones_like(target.model.norm.weight)))
    blocks = Blocks(drafter, target.get_input_embeddings().weight, target.lm_head.weight)
    fast = compiled(blocks, device)
    learn, held = split(store.load(pair / "text.npz"), shape.length)
    feed, check = Feed(learn, shape, 3), Feed(held, shape, 4)

    def run(module: Any, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        ids, lengths, anchors = (t.to(device, non_blocking=True) for t in batch)
        with torch.no_grad():
            taps = drafter.taps_of(target.model(ids, output_hidden_states=True).hidden_states)
        with autocast:
            return module(taps, ids, lengths, anchors)

    @torch.no_grad()
    def look() -> dict[str, float]:
        seen = [run(blocks, check.batch(i)) for i in range(2)]
        right = torch.cat([hits for _, hits in seen])
        runs = right.long().cumprod(1).float()
        return {
            "held": float(torch.stack([loss for loss, _ in seen]).mean()),
            "first": float(right[:, 0].float().mean()),
            "chain": 1 + float(runs.sum(1).mean()),
        }

    done = training.train(
        drafter, lambda step: run(fast, feed.batch(step))[0], look, clock, pair / "drafter.pt",
        rate=shape.rate, decay=0.01, look_every=LOOK, name="drafter",
    )  # fmt: skip
    curve.save_json(done.points, pair / "drafter-loss.json")
    (pair / "drafter-loss.svg").write_text(curve.svg(done.points, ("loss", "held", "chain"), f"drafter of {pair.name}"))
    if done.spent < clock.seconds:
        return False
    dflash.save(drafter, pair / "drafter")
    sizes = {"parameters": sum(p.numel() for p in drafter.parameters()), "steps": done.step, "seconds": done.spent}
    (pair / "drafter" / "trained.json").write_text(json.dumps(sizes | {"tokens": learn.tokens}) + "\n")
    return True


def main() -> None:
    from benchmarks.pairs.recipes import RECIPES

    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs.train_drafter")
    parser.add_argument("pair", type=Path)
    parser.add_argument("--recipe", choices=RECIPES, default="smollm2")
    parser.add_argument("--minutes", type=float, default=10.0, help="in all, over every call")
    parser.add_argument("--piece", type=float, default=8.0, help="minutes of this call, at most")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args()
    recipe = RECIPES[given.recipe]
    clock = training.Clock(given.minutes * 60, given.piece * 60)
    done = train(given.pair, recipe.drafter, clock, recipe.mask_token, given.device)
    print("done" if done else "call again to go on")


if __name__ == "__main__":
    main()
