"""A drafter of any size with a profile that it fits, so that `ddtree-deploy push` sends it as it sends a real one."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from deployer.checkpoint import shapes
from deployer.checkpoint.shapes import Dimensions

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, TARGET_LAYERS = 2048, 16, 4, 128, 3
FFN = 8456  # so that 17 layers are 2 GiB and a little


def dimensions(size: int) -> Dimensions:
    """Those of a drafter of at least `size` bytes."""
    layers = 1
    while weight(layers) < size:
        layers += 1
    return _dimensions(layers)


def weight(layers: int) -> int:
    """Bytes of the tensors, in BF16."""
    return sum(2 * math.prod(shape) for shape in shapes.tensors(_dimensions(layers)).values())


def _dimensions(layers: int) -> Dimensions:
    return Dimensions(
        layers=layers,
        hidden=HIDDEN,
        ffn=FFN,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        target_layers=TARGET_LAYERS,
    )


def write_drafter(path: Path, made: Dimensions) -> None:
    """Random bytes under a header: nothing compresses, nothing looks like a hole."""
    header, offset = {}, 0
    for name, shape in shapes.tensors(made).items():
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while offset > 0:
            file.write(os.urandom(min(offset, 1 << 24)))
            offset -= 1 << 24
    part.rename(path)


def profile(made: Dimensions) -> str:
    """The profile's TOML."""
    layers = json.dumps(["full_attention"] * made.layers)
    numbers = "".join(f"{key} = {value}\n" for key, value in made.model_dump().items())
    return f"""name = "random"
dtype = "BF16"

[shapes]
{numbers}
[config]
architectures = ["DFlashDraftModel"]
model_type = "qwen3"
block_size = 8
num_target_layers = 8
vocab_size = 352
layer_types = {layers}

[config.dflash_config]
mask_token_id = 262
target_layer_ids = [1, 3, 5]
"""


def inventory(host: str, ssh_config: Path, root: str) -> str:
    """The inventory's TOML; drafter and profile lie beside it."""
    return f"""name = "throughput"
root = "{root}"
service = "ddtree-throughput"

[ssh]
host = "{host}"
config_file = "{ssh_config}"

[drafter]
file = "drafter.safetensors"
profile = "random.toml"

[target]
path = "{root}/models/none"

[install]
build = "cpu"

[serve]
served_model_name = "none"
"""
