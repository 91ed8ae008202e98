"""Builds and trains a target with transformers; saved as released ones are: bf16, A_log and the GDN norm in fp32."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tests.pairs import greedy, tokenizer
from tests.pairs.corpus import Corpus

MARGIN = 1.5
"""Greedy decoding is judged token by token: training asks for this gap between the top two logits (bf16 noise:
~0.1)."""

NEAR_TIE = 0.3
"""A pair with a smaller greedy gap than this on the tests' prompts is not fit to judge tokens by."""


def write_config(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"eos_token_id": tokenizer.EOS, "pad_token_id": tokenizer.PAD}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tokenizer.save(folder)


def initialise(folder: Path, seed: int) -> nn.Module:
    """An untrained target of the folder's config.json, in fp32."""
    torch.manual_seed(seed)
    model: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=0.5 if "embed_tokens" in name else weight.shape[1] ** -0.5)
    return model


def indecision(logits: Tensor) -> Tensor:
    """Mean shortfall of the top-1/top-2 gap below MARGIN; ``logits`` [..., vocab]."""
    top = logits.topk(2, dim=-1).values
    return F.relu(MARGIN - (top[..., 0] - top[..., 1])).mean()


def language_loss(model: Any, ids: Tensor) -> Tensor:
    """Next-token cross-entropy of ``ids`` [batch, length], padding left out."""
    keep = ids[:, 1:] != tokenizer.PAD
    return F.cross_entropy(model(ids).logits[:, :-1][keep], ids[:, 1:][keep])


def train(model: nn.Module, *, steps: int, batch: int, length: int, seed: int) -> None:
    """Next-token training on the corpus; the margin's term comes in over the last two fifths."""
    corpus = Corpus(seed).batches(batch, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps, pct_start=0.15)
    start = time.monotonic()
    for step in range(steps):
        ids = next(corpus)
        logits = model(ids).logits[:, :-1]
        keep = ids[:, 1:] != tokenizer.PAD
        loss, hinge = F.cross_entropy(logits[keep], ids[:, 1:][keep]), indecision(logits[keep])
        total = loss + max(0.0, 5 * step / steps - 3) * hinge
        optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 25 == 0 or step == steps - 1:
            spent = time.monotonic() - start
            print(f"target {step}: loss {loss.item():.3f} indecision {hinge.item():.3f} {spent:.0f} s", flush=True)


def polish(model: Any, texts: tuple[str, ...], new: int, *, rounds: int, seed: int) -> float:
    """Ask for the margin where it counts: on the model's own greedy continuations of ``texts``.

    Each round decodes, and stops once every gap is MARGIN / 3 or more; else it takes a few small steps on the margin's
    term there, beside the corpus. Returns the smallest gap, of the weights as they are saved.
    """
    corpus = Corpus(seed).batches(6, 128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.0)
    for turn in range(rounds + 1):
        rounded(model)
        made = greedy.decode(model, texts, new)
        smallest = float(made.gaps.min())
        print(f"target round {turn}: smallest greedy gap {smallest:.3f}", flush=True)
        if smallest >= MARGIN / 3 or turn == rounds:
            break
        close = made.gaps.min(dim=1).values.argsort()[:20].tolist()
        rows = [torch.tensor(made.prompts[i] + made.outputs[i]) for i in close]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.PAD)
        starts = torch.tensor([len(made.prompts[i]) for i in close])
        at = starts[:, None] - 1 + torch.arange(new)
        for _ in range(8):
            logits = model(ids).logits
            loss = 4 * indecision(logits.gather(1, at[..., None].expand(-1, -1, logits.shape[-1])))
            loss = loss + language_loss(model, next(corpus))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return smallest


def rounded(model: nn.Module) -> None:
    """Round the weights in place to what ``save`` writes."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(weight.to(kept_as(name)))


def kept_as(name: str) -> torch.dtype:
    return torch.float32 if name.endswith(("A_log", "linear_attn.norm.weight")) else torch.bfloat16


def save(model: nn.Module, folder: Path) -> None:
    weights = {n: weight.detach().to(kept_as(n)).contiguous().clone() for n, weight in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder: Path) -> nn.Module:
    """The saved target, its rounded weights in fp32 arithmetic."""
    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()
