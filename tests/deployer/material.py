"""Small drafter checkpoints written by hand, and inventories for this machine."""

from __future__ import annotations

import json
import math
from pathlib import Path

import planted

from deployer.inventory.model import Inventory

REPOSITORY = Path(__file__).parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
RECORDED = Path(__file__).parent / "recorded"
TINY_PROFILE = REPOSITORY / "inventory/profiles/tiny-hybrid.toml"


def recorded(name: str) -> str:
    """What a fact command answered: a recording of the lab, or an example from the other folder."""
    path = FIXTURES / name
    return (path if path.is_file() else RECORDED / name).read_text()


def write_checkpoint(path: Path, tensors: dict[str, tuple[int, ...]], *, dtype: str = "BF16") -> Path:
    """Writes a safetensors file whose tensors' bytes are all 0x3f (about 0.75 in BF16)."""
    header, offset = {}, 0
    for name, shape in tensors.items():
        end = offset + math.prod(shape) * 2
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\x3f" * offset)
    return path


def inventory_for(folder: Path, drafter: Path, **target: str) -> Inventory:
    """An inventory whose host is this machine and whose root is in `folder`."""
    return Inventory.model_validate(
        {
            "name": "here",
            "root": f"{folder}/root",
            "ssh": {"host": "localhost"},
            "drafter": {"file": drafter, "profile": str(TINY_PROFILE)},
            "target": {"path": f"{folder}/root/models/target", **target},
            "install": {"build": "cpu"},
            "serve": {"served_model_name": "tiny", "secrets": {"VLLM_API_KEY": {"env": planted.VARIABLE}}},
        }
    )


def write_model(folder: Path, *, shards: int = 3) -> Path:
    """A target as it is published: config.json, tokenizer.json and weights in shards with their index."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"text_config": {"hidden_size": 128, "vocab_size": 320}}))
    (folder / "tokenizer.json").write_text("{}")
    listed = {}
    for number in range(1, shards + 1):
        name = f"model-{number:05}-of-{shards:05}.safetensors"
        tensors: dict[str, tuple[int, ...]] = {f"model.layers.{number}.mlp.up_proj.weight": (512, 128)}
        if number == 1:
            tensors["model.embed_tokens.weight"] = (320, 128)
        write_checkpoint(folder / name, tensors)
        listed |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    return folder
