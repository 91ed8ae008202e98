"""The DFlash drafter (arXiv 2602.06036) as it is trained here: configuration, forward pass on any device, loss, checkpoint.

One forward reads the target's hidden states of all tokens before the anchor and drafts a block [anchor, MASK, MASK, ...]
at once. Keys and values of every layer are those of the projected hidden states and of the block itself; the block sees
both, without causality. Embedding and lm_head are the target's and frozen. Tensor names and config.json are what vLLM's
DFlashDraftModel reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

BLOCK = 16
GAMMA = 7.0
"""How slowly the loss forgets the later slots: slot k weighs exp(-(k - 1) / GAMMA) (the paper's Eq. 4 and value for blocks
of 16).
"""


def taps(layers: int, count: int) -> list[int]:
    """`count` target layers, evenly from the second to the third last, as the released drafters choose them.

    Raises ValueError where a target has too few; one so small that they do not fit up to there gives its second last too.
    """
    first = 1
    last = max(layers - 3, first + count - 1)
    if count < 2 or last > layers - 2:
        raise ValueError(f"{count} taps do not fit a target of {layers} layers")
    return [round(first + i * (last - first) / (count - 1)) for i in range(count)]


def config(target: dict[str, Any], *, mask_token: int, layers: int, tap_count: int, ffn: int) -> dict[str, Any]:
    """config.json of a drafter with the target's widths."""
    hidden, heads = target["hidden_size"], target["num_attention_heads"]
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": BLOCK,
        "dflash_config": {
            "mask_token_id": mask_token,
            "target_layer_ids": taps(target["num_hidden_layers"], tap_count),
        },
        "num_target_layers": target["num_hidden_layers"],
        "vocab_size": target["vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": target["num_key_value_heads"],
        "head_dim": target.get("head_dim") or hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": target["max_position_embeddings"],
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "layer_types": ["full_attention"] * layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": layers,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": target["eos_token_id"],
        "use_cache": True,
    }


class RMSNorm(nn.Module):
    """In fp32 whatever comes in, as vLLM's kernel computes it."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE by halves: `x` [batch, heads, tokens, head], `cos` and `sin` [batch, 1, tokens, head / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class Layer(nn.Module):
    """Attention over context and block, then a gated MLP; submodules are named as in the checkpoint."""

    def __init__(self, c: dict[str, Any]) -> None:
        super().__init__()
        hidden, inner, eps = c["hidden_size"], c["intermediate_size"], c["rms_norm_eps"]
        self.heads, self.kv_heads, self.head = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.self_attn, self.mlp = nn.Module(), nn.Module()
        for name, heads in (("q_proj", self.heads), ("k_proj", self.kv_heads), ("v_proj", self.kv_heads)):
            self.self_attn.add_module(name, nn.Linear(hidden, heads * self.head, bias=False))
        self.self_attn.o_proj = nn.Linear(self.heads * self.head, hidden, bias=False)
        self.self_attn.q_norm, self.self_attn.k_norm = RMSNorm(self.head, eps), RMSNorm(self.head, eps)
        self.mlp.gate_proj, self.mlp.up_proj = (
            nn.Linear(hidden, inner, bias=False),
            nn.Linear(hidden, inner, bias=False),
        )
        self.mlp.down_proj = nn.Linear(inner, hidden, bias=False)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden, eps), RMSNorm(hidden, eps)

    def _attend(self, x: Tensor, context: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        a, own = self.self_attn, x.shape[1]
        keys = torch.cat([context, x], dim=1)
        cos, sin = rope
        q = a.q_norm(a.q_proj(x).unflatten(-1, (self.heads, self.head))).transpose(1, 2)
        k = a.k_norm(a.k_proj(keys).unflatten(-1, (self.kv_heads, self.head))).transpose(1, 2)
        v = a.v_proj(keys).unflatten(-1, (self.kv_heads, self.head)).transpose(1, 2)
        q, k = rotate(q, cos[:, :, -own:], sin[:, :, -own:]), rotate(k, cos, sin)
        # heads repeated by hand: with a mask, CUDA's fused kernel takes no grouped heads
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return a.o_proj(out.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, context: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self._attend(self.input_layernorm(x), context, rope, mask)
        y = self.post_attention_layernorm(x)
        return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y))


class Drafter(nn.Module):
    """Parameter names are the checkpoint's tensor names."""

    def __init__(self, c: dict[str, Any]) -> None:
        super().__init__()
        self.config = c
        self.width: int = c["block_size"] - 1
        self.mask_token: int = c["dflash_config"]["mask_token_id"]
        self.taps: list[int] = c["dflash_config"]["target_layer_ids"]
        hidden = c["hidden_size"]
        self.fc = nn.Linear(len(self.taps) * hidden, hidden, bias=False)
        self.hidden_norm, self.norm = RMSNorm(hidden, c["rms_norm_eps"]), RMSNorm(hidden, c["rms_norm_eps"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))

    def taps_of(self, hidden_states: tuple[Tensor, ...]) -> Tensor:
        """transformers' hidden_states (index 0 is the embedding) -> [batch, tokens, taps * hidden]."""
        return torch.cat([hidden_states[tap + 1] for tap in self.taps], dim=-1)

    def forward(self, taps: Tensor, anchors: Tensor, anchor_embeddings: Tensor, mask_embedding: Tensor) -> Tensor:
        """Draft one block per anchor: final hidden states of its slots, [batch, n, width, hidden].

        `taps` [batch, tokens, taps * hidden]; the block at position `anchors` [batch, n] sees the taps of earlier tokens only;
        `anchor_embeddings` [batch, n, hidden] embed the tokens at the anchors, `mask_embedding` [hidden] the MASK.
        """
        (batch, n), size, device = anchors.shape, self.width + 1, taps.device
        context = self.hidden_norm(self.fc(taps))
        context_at = torch.arange(taps.shape[1], device=device).expand(batch, -1)
        block_at = (anchors[..., None] + torch.arange(size, device=device)).flatten(1)
        masks = mask_embedding.expand(batch, n, self.width, -1)
        x = torch.cat([anchor_embeddings[:, :, None], masks], dim=2).flatten(1, 2)
        owner = torch.arange(n, device=device).repeat_interleave(size)
        sees_context = context_at[:, None, :] < anchors.repeat_interleave(size, dim=1)[..., None]
        sees_block = (owner[:, None] == owner).expand(batch, -1, -1)
        mask = torch.cat([sees_context, sees_block], dim=2)[:, None]
        rope = self._rope(torch.cat([context_at, block_at], dim=1))
        for layer in self.layers:
            x = layer(x, context, rope, mask)
        return self.norm(x).unflatten(1, (n, size))[:, :, 1:]

    def _rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        half = self.config["head_dim"] // 2
        power = torch.arange(half, device=positions.device, dtype=torch.float32) / half
        angle = positions[:, None, :, None].float() * self.config["rope_theta"] ** -power
        return angle.cos(), angle.sin()


def loss(logits: Tensor, wanted: Tensor, live: Tensor) -> Tensor:
    """Cross-entropy weighted by slot: `logits` [blocks, width, vocabulary], `wanted` int64 and `live` bool [blocks, width]."""
    weight = torch.exp(-torch.arange(wanted.shape[1], device=wanted.device) / GAMMA) * live
    each = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="none").view_as(wanted)
    return (each * weight).sum() / weight.sum().clamp(min=1e-6)


def save(drafter: Drafter, folder: Path) -> None:
    """The folder vLLM loads: config.json and bf16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(drafter.config, indent=1) + "\n")
    weights = {name: weight.detach().cpu().bfloat16().contiguous() for name, weight in drafter.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder: Path) -> Drafter:
    """The saved drafter, its rounded weights in fp32."""
    drafter = Drafter(json.loads((folder / "config.json").read_text()))
    drafter.load_state_dict({name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()})
    return drafter.eval()
