"""The pairs' config.json files, in the released checkpoints' formats, at a size that trains on a laptop's CPU.

vLLM 0.32.0's CPU build bounds them: attention head_dim in {32, 64, 80, 96, 112, 128, ...}, Gated DeltaNet in bf16.
"""

from __future__ import annotations

from typing import Any, Literal

from benchmarks.pairs import qwen3_5
from tests.pairs.tokenizer import EOS, MASK, PAD, VOCAB

Kind = Literal["dense", "hybrid", "hybrid128"]
KINDS: tuple[Kind, ...] = ("dense", "hybrid", "hybrid128")
BLOCK_SIZES = (8, 16)
HIDDEN, HEAD = 128, 64

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": EOS,
    "use_cache": True,
}


def _dense() -> dict[str, Any]:
    """Qwen3, as vLLM's Qwen3ForCausalLM reads it."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **_COMMON,
        "num_hidden_layers": 4,
        "rope_theta": 1e6,
        "pad_token_id": PAD,
    }


def _hybrid(layers: int, gdn_head: int, k_heads: int, v_heads: int) -> dict[str, Any]:
    """The text half of Qwen3.5, with the sizes that all pairs have in common."""
    return qwen3_5.config(
        vocabulary=VOCAB,
        hidden=HIDDEN,
        ffn=_COMMON["intermediate_size"],
        layers=layers,
        heads=_COMMON["num_attention_heads"],
        kv_heads=_COMMON["num_key_value_heads"],
        gdn_head=gdn_head,
        gdn_k_heads=k_heads,
        gdn_v_heads=v_heads,
        end=EOS,
        pad=PAD,
    )


def target(kind: Kind) -> dict[str, Any]:
    """config.json of the target of ``kind``."""
    if kind == "dense":
        return _dense()
    return _hybrid(8, 64, 2, 4) if kind == "hybrid" else _hybrid(4, 128, 1, 2)


def drafter(kind: Kind, block_size: int) -> dict[str, Any]:
    """config.json of the drafter of ``kind``: z-lab's format, two layers, no embedding and no lm_head of its own."""
    layers = 2
    depth = target(kind)["num_hidden_layers"]
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **_COMMON,
        "block_size": block_size,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 3, 5] if depth == 8 else [0, 1, 2]},
        "num_target_layers": depth,
        "num_hidden_layers": layers,
        "rope_theta": 1e6,
        "layer_types": ["full_attention"] * layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": layers,
        "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    }
