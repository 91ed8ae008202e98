"""The DFlash drafter in plain torch: the forward pass, its training, its checkpoint.

One forward reads the target's hidden states of all tokens before the anchor, and drafts a block [anchor, MASK, MASK,
...] at once (DFlash, arXiv 2602.06036). In every layer the keys and values are those of the projected hidden states
and of the block itself; the block attends to both without causality. Embedding and lm_head are the target's.
"""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.pairs import tokenizer
from tests.pairs.corpus import Corpus

TEMPERATURE = 0.6
"""Of the text it learns from: a little more entropy than greedy text has, so it stays a weak drafter."""
GAMMA = 4.0
"""How slowly the loss forgets the later slots of a block: slot k weighs exp(-(k - 1) / GAMMA) (the paper's Eq. 4)."""
ANCHORS = 12
POOL = 60
"""Batches whose hidden states are computed once and used in turn, each time at other anchors."""


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """RoPE by halves: ``x`` [batch, tokens, heads, head], ``positions`` [batch, tokens]."""
    half = x.shape[-1] // 2
    angle = positions[..., None] * theta ** (-torch.arange(half) / half)
    cos, sin = angle.cos()[:, :, None], angle.sin()[:, :, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self, c: dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head, self.theta = (
            c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["rope_theta"]
        )  # fmt: skip
        hidden = c["hidden_size"]
        self.q_proj = nn.Linear(hidden, self.heads * self.head, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head, hidden, bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.head, c["rms_norm_eps"]), RMSNorm(self.head, c["rms_norm_eps"])

    def forward(self, x: Tensor, context: Tensor, x_at: Tensor, context_at: Tensor, mask: Tensor) -> Tensor:
        keys, at = torch.cat([context, x], 1), torch.cat([context_at, x_at], 1)
        q = rotate(self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.head))), x_at, self.theta)
        k = rotate(self.k_norm(self.k_proj(keys).unflatten(-1, (self.kv_heads, self.head))), at, self.theta)
        v = self.v_proj(keys).unflatten(-1, (self.kv_heads, self.head))
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask[:, None], enable_gqa=True
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, c: dict[str, Any]) -> None:
        super().__init__()
        hidden, inner = c["hidden_size"], c["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: dict[str, Any]) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(c), MLP(c)
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x: Tensor, context: Tensor, x_at: Tensor, context_at: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, x_at, context_at, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    """Parameter names are the checkpoint's tensor names."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.width: int = config["block_size"] - 1
        self.taps: list[int] = config["dflash_config"]["target_layer_ids"]
        hidden = config["hidden_size"]
        self.fc = nn.Linear(len(self.taps) * hidden, hidden, bias=False)
        self.hidden_norm, self.norm = RMSNorm(hidden, config["rms_norm_eps"]), RMSNorm(hidden, config["rms_norm_eps"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))

    def taps_of(self, hidden_states: tuple[Tensor, ...]) -> Tensor:
        """transformers' hidden_states (index 0 is the embedding) -> [batch, tokens, taps * hidden]."""
        return torch.cat([hidden_states[tap + 1] for tap in self.taps], dim=-1)

    def forward(self, taps: Tensor, anchors: Tensor, anchor_embeddings: Tensor, mask_embedding: Tensor) -> Tensor:
        """Draft one block per anchor.

        ``taps`` [batch, tokens, taps * hidden]; ``anchors`` int64 [batch, n] are positions, and the block at anchor
        ``a`` sees the taps of tokens before ``a`` only; ``anchor_embeddings`` [batch, n, hidden] embed the tokens at
        the anchors; ``mask_embedding`` [hidden]. Returns the final hidden states of the drafted slots, [batch, n,
        width, hidden].
        """
        batch, n = anchors.shape
        size = self.width + 1
        context = self.hidden_norm(self.fc(taps))
        context_at = torch.arange(taps.shape[1]).expand(batch, -1)
        x_at = (anchors[..., None] + torch.arange(size)).flatten(1)
        masks = mask_embedding.expand(batch, n, self.width, -1)
        x = torch.cat([anchor_embeddings[:, :, None], masks], dim=2).flatten(1, 2)
        owner = torch.arange(n).repeat_interleave(size)
        sees_context = context_at[:, None, :] < anchors.repeat_interleave(size, dim=1)[..., None]
        sees_block = (owner[:, None] == owner).expand(batch, -1, -1)
        mask = torch.cat([sees_context, sees_block], dim=2)
        for layer in self.layers:
            x = layer(x, context, x_at, context_at, mask)
        return self.norm(x).unflatten(1, (n, size))[:, :, 1:]


def train(target: Any, config: dict[str, Any], *, steps: int, batch: int, length: int, seed: int) -> Drafter:
    """Cross-entropy of each slot against the text, at ``ANCHORS`` random anchors a sequence."""
    torch.manual_seed(seed)
    drafter = Drafter(config)
    embedding, head = target.get_input_embeddings().weight.detach(), target.lm_head.weight.detach()
    weight = torch.exp(-torch.arange(drafter.width) / GAMMA)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=1e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    corpus, start = Corpus(seed, TEMPERATURE).batches(batch, length), time.monotonic()
    pool = []
    for ids in islice(corpus, POOL):
        with torch.no_grad():
            pool.append((ids, drafter.taps_of(target.model(ids, output_hidden_states=True).hidden_states)))
    for step in range(steps):
        ids, taps = pool[step % POOL]
        anchors = torch.randint(6, length - drafter.width, (batch, ANCHORS))
        wanted = ids.gather(1, (anchors[..., None] + 1 + torch.arange(drafter.width)).flatten(1)).view(
            batch, ANCHORS, -1
        )
        slots = drafter(taps, anchors, embedding[ids.gather(1, anchors)], embedding[tokenizer.MASK])
        each = F.cross_entropy(F.linear(slots, head).movedim(-1, 1), wanted, reduction="none")
        loss = (each * weight * (wanted != tokenizer.PAD)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 25 == 0 or step == steps - 1:
            print(f"drafter {step}: loss {loss.item():.3f} {time.monotonic() - start:.0f} s", flush=True)
    return drafter


def save(drafter: Drafter, folder: Path) -> None:
    weights = {name: weight.detach().bfloat16().contiguous().clone() for name, weight in drafter.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder: Path, config: dict[str, Any]) -> Drafter:
    """The saved drafter, its rounded weights in fp32 arithmetic."""
    drafter = Drafter(config)
    drafter.load_state_dict({name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()})
    return drafter.eval()
