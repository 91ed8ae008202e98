"""Configurations of target and drafter with random weights: the widths decide what a step costs, the weights do not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Dims:
    """Widths of a Gated-DeltaNet hybrid (every fourth layer attends) and of its DFlash drafter (block of 16)."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    gdn_k_heads: int
    gdn_v_heads: int
    gdn_dim: int
    vocabulary: int
    drafter_heads: int
    drafter_kv_heads: int
    drafter_layers: int
    taps: tuple[int, ...]

    @property
    def drafter_head_dim(self) -> int:
        return 128 if self.hidden > 1024 else self.head_dim


QWEN36_27B = Dims(5120, 17408, 64, 24, 4, 256, 16, 48, 128, 248320, 32, 8, 5, (1, 16, 31, 46, 61))
SLICE16 = Dims(5120, 17408, 16, 24, 4, 256, 16, 48, 128, 248320, 32, 8, 5, (1, 4, 7, 10, 13))
"""A quarter of the layers at full width: enough to iterate on, not for a result."""
TINY = Dims(128, 256, 4, 4, 2, 64, 2, 4, 64, 512, 4, 2, 2, (0, 2))
"""Runs anywhere; shows that the benchmark works and nothing else."""
PRESETS = {"27b": QWEN36_27B, "slice16": SLICE16, "tiny": TINY}


def write(dims: Dims, folder: Path) -> tuple[Path, Path]:
    """Writes config.json of both models; returns (target, drafter)."""
    folders = (folder / "target", folder / "drafter")
    for path, config in zip(folders, (_target(dims), _drafter(dims)), strict=True):
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(config, indent=1))
    return folders


def _common(dims: Dims) -> dict[str, Any]:
    return {
        "vocab_size": dims.vocabulary,
        "hidden_size": dims.hidden,
        "intermediate_size": dims.ffn,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": dims.vocabulary - 2,
    }


def _target(dims: Dims) -> dict[str, Any]:
    kinds = ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(dims.layers)]
    rotary = dims.head_dim // 4
    section = [rotary // 2 - 2 * (rotary // 6), rotary // 6, rotary // 6]
    return _common(dims) | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "num_hidden_layers": dims.layers,
        "num_attention_heads": dims.heads,
        "num_key_value_heads": dims.kv_heads,
        "head_dim": dims.head_dim,
        "full_attention_interval": 4,
        "layer_types": kinds,
        "attn_output_gate": True,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": dims.gdn_dim,
        "linear_value_head_dim": dims.gdn_dim,
        "linear_num_key_heads": dims.gdn_k_heads,
        "linear_num_value_heads": dims.gdn_v_heads,
        "mamba_ssm_dtype": "float32",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": section,
            "mrope_interleaved": True,
        },
        "partial_rotary_factor": 0.25,
        "use_cache": True,
    }


def _drafter(dims: Dims) -> dict[str, Any]:
    return _common(dims) | {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 16,
        "dflash_config": {"mask_token_id": dims.vocabulary - 1, "target_layer_ids": list(dims.taps)},
        "num_target_layers": dims.layers,
        "num_hidden_layers": dims.drafter_layers,
        "num_attention_heads": dims.drafter_heads,
        "num_key_value_heads": dims.drafter_kv_heads,
        "head_dim": dims.drafter_head_dim,
        "rope_theta": 1e7,
        "layer_types": ["sliding_attention"] * (dims.drafter_layers - 1) + ["full_attention"],
        "sliding_window": 2048,
        "use_sliding_window": True,
        "max_window_layers": dims.drafter_layers,
        "attention_dropout": 0.0,
    }
