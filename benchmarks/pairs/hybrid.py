"""A small Gated-DeltaNet language model of the standard library's code and prose: python -m benchmarks.pairs.hybrid PAIR
--minutes 8

Three Gated DeltaNet layers, then one of gated full attention, and so on, in Qwen3.5's layout as vLLM's Qwen3_5ForCausalLM
reads it; the Gated DeltaNet heads are 128 wide, as the 27B's are. Writes PAIR/target with the tokenizer it trains first,
and PAIR/target.pt, from which a second call goes on. The weights are derived from text under the PSF licence.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.pairs import curve, library, qwen3_5, training

LOOK = 15.0
"""Seconds between two looks at held-out text; each also saves a checkpoint."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the model and of its training: `batch` windows of `length` tokens a step; `files` limits the text, 0: all of
    it.
    """

    hidden: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    gdn_k_heads: int
    gdn_v_heads: int
    gdn_head: int
    vocabulary: int
    batch: int
    length: int
    rate: float = 1.5e-3
    files: int = 0


def config(shape: Shape) -> dict[str, Any]:
    """config.json of the target."""
    return qwen3_5.config(
        vocabulary=shape.vocabulary,
        hidden=shape.hidden,
        ffn=shape.ffn,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        gdn_head=shape.gdn_head,
        gdn_k_heads=shape.gdn_k_heads,
        gdn_v_heads=shape.gdn_v_heads,
        end=0,
        pad=0,
    )


def text_of(shape: Shape) -> library.Library:
    paths = library.files()
    if shape.files:
        topics = [path for path in paths if path.name == "topics.py"]
        paths = [*paths[:: max(1, len(paths) // shape.files)], *topics]
    return library.read(paths)


def prepare(pair: Path, shape: Shape) -> Any:
    """Tokenizer and config.json, made once; returns the tokenizer."""
    from transformers import AutoTokenizer

    folder = pair / "target"
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = library.train_tokenizer(text_of(shape), shape.vocabulary, folder)
        if len(tokenizer) > shape.vocabulary:
            raise SystemExit(f"the tokenizer has {len(tokenizer)} tokens, the model {shape.vocabulary}")
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, "pad_token_id": 0}) + "\n")
        (folder / "config.json").write_text(json.dumps(config(shape), indent=1) + "\n")
    return AutoTokenizer.from_pretrained(folder)


def stream(tokenizer: Any, texts: dict[str, tuple[str, ...]]) -> Tensor:
    """All texts as one int64 run of token ids, END between them; a text longer than 50,000 characters is cut into pieces."""
    pieces = [
        text[i : i + 50_000] for kind in library.SETS for text in texts[kind] for i in range(0, len(text), 50_000)
    ]
    rows = tokenizer(pieces, add_special_tokens=False)["input_ids"]
    return torch.tensor([token for row in rows for token in [*row, 0]])


def initialise(folder: Path) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    model: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=0.02 if "embed_tokens" in name else weight.shape[1] ** -0.5)
    return model


def save(model: nn.Module, folder: Path) -> None:
    """bf16, but A_log and the Gated DeltaNet norm in fp32, as released checkpoints have them."""
    kept = {
        name: weight.detach()
        .cpu()
        .to(torch.float32 if name.endswith(("A_log", "linear_attn.norm.weight")) else torch.bfloat16)
        for name, weight in model.state_dict().items()
    }
    save_file(
        {name: weight.contiguous() for name, weight in kept.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


def train(pair: Path, shape: Shape, clock: training.Clock, device_name: str) -> bool:
    """Trains for one piece; True when the whole time is spent and the weights are written."""
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    place = training.device_of(device_name)
    device, autocast = place["device"], place["autocast"]
    tokenizer, texts = prepare(pair, shape), text_of(shape)
    learn, held = stream(tokenizer, texts.learn), stream(tokenizer, texts.held)
    model = initialise(pair / "target").to(device)

    def loss_on(tokens: Tensor, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(len(tokens) - shape.length - 1, (shape.batch,), generator=generator)
        ids = tokens[starts[:, None] + torch.arange(shape.length + 1)].to(device)
        with autocast:
            logits = model(ids[:, :-1]).logits
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    best = training.Best(pair / "target-best.pt", model)

    @torch.no_grad()
    def look() -> dict[str, float]:
        lost = float(torch.stack([loss_on(held, seed) for seed in range(4)]).mean())
        best.offer(lost)
        return {"held": lost}

    done = training.train(
        model, lambda step: loss_on(learn, 1_000_003 + step), look, clock, pair / "target.pt",
        rate=shape.rate, decay=0.05, look_every=LOOK, name="target",
    )  # fmt: skip
    curve.save_json(done.points, pair / "target-loss.json")
    (pair / "target-loss.svg").write_text(curve.svg(done.points, ("loss", "held"), f"target of {pair.name}"))
    if done.spent < clock.seconds:
        return False
    best.restore()
    save(model, pair / "target")
    sizes = {"held": best.held} | {
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": done.step,
        "seconds": done.spent,
    }
    source = sizes | {"tokens": len(learn), "text": "Python standard library"}
    (pair / "target" / "source.json").write_text(json.dumps(source) + "\n")
    return True


def main() -> None:
    from benchmarks.pairs.recipes import RECIPES

    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs.hybrid")
    parser.add_argument("pair", type=Path)
    parser.add_argument("--minutes", type=float, default=8.0, help="in all, over every call")
    parser.add_argument("--piece", type=float, default=8.0, help="minutes of this call, at most")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args()
    shape = RECIPES["hybrid"].hybrid
    assert shape is not None
    done = train(given.pair, shape, training.Clock(given.minutes * 60, given.piece * 60), given.device)
    print("done" if done else "call again to go on")


if __name__ == "__main__":
    main()
