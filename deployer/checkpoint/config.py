"""The drafter's config.json: vLLM needs one, the bare checkpoint has none."""

from __future__ import annotations

import json

from deployer.checkpoint import shapes
from deployer.checkpoint.header import Header
from deployer.checkpoint.profiles import Profile
from deployer.checkpoint.shapes import Dimensions

DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def config_from(header: Header, profile: Profile) -> dict[str, object]:
    """config.json as a dict: dimensions and dtype from the header, everything else from the profile."""
    return _config(shapes.measure(header), next(iter(header.tensors.values())).dtype, profile)


def config_of(profile: Profile) -> dict[str, object]:
    """The same for a checkpoint that fits the profile, before anybody has seen its header."""
    return _config(profile.shapes, profile.dtype, profile)


def _config(measured: Dimensions, dtype: str, profile: Profile) -> dict[str, object]:
    of_the_weights: dict[str, object] = {
        "hidden_size": measured.hidden,
        "intermediate_size": measured.ffn,
        "num_hidden_layers": measured.layers,
        "num_attention_heads": measured.heads,
        "num_key_value_heads": measured.kv_heads,
        "head_dim": measured.head_dim,
        "torch_dtype": DTYPES.get(dtype, dtype.lower()),
    }
    return profile.config.model_dump() | of_the_weights


def as_json(config: dict[str, object]) -> bytes:
    """The file's bytes; the same config always gives the same bytes."""
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
