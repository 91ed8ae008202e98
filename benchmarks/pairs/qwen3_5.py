"""config.json of the text half of Qwen3.5 at any size, as vLLM's Qwen3_5ForCausalLM reads it: plain data, no torch."""

from __future__ import annotations

from typing import Any


def config(
    *,
    vocabulary: int,
    hidden: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int,
    gdn_head: int,
    gdn_k_heads: int,
    gdn_v_heads: int,
    end: int,
    pad: int,
) -> dict[str, Any]:
    """Three Gated DeltaNet layers, then one of gated full attention, and so on; `end` and `pad` are token ids."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": end,
        "pad_token_id": pad,
        "use_cache": True,
        "full_attention_interval": 4,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)],
        "attn_output_gate": True,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": gdn_head,
        "linear_value_head_dim": gdn_head,
        "linear_num_key_heads": gdn_k_heads,
        "linear_num_value_heads": gdn_v_heads,
        "mamba_ssm_dtype": "float32",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
        "partial_rotary_factor": 0.25,
    }
