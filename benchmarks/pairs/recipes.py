"""What each pair is made of and how long its parts are; the smoke versions run on two cores in minutes and say nothing of
language.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.pairs import hybrid, smollm2
from benchmarks.pairs.train_drafter import Shape

HEATS = (0.0, 0.7, 1.0)
CHAINS = (3, 5, 7, 11, 15)
TREES = (7, 15, 31, 63)


@dataclass(frozen=True)
class Recipe:
    """One pair: `hybrid` is its target's training, None where the target is SmolLM2.

    Text: `samples` answers of up to `answer` tokens a prompt at T > 0 (one at T = 0), to at most `prompts` prompts (0:
    all). Evaluation: `per_set` prompts a set, up to `new` tokens each, at `heats`, in batches of `batch`. Shares of the
    time go to training the target and the drafter; the rest is writing and evaluating.
    """

    mask_token: int
    drafter: Shape
    hybrid: hybrid.Shape | None
    answer: int
    samples: int
    prompts: int
    per_set: int
    new: int
    batch: int
    target_share: float
    drafter_share: float
    heats: tuple[float, ...] = HEATS
    chains: tuple[int, ...] = CHAINS
    trees: tuple[int, ...] = TREES
    max_model_len: int = 1024
    prompt_tokens: int = 0
    """The last so many tokens of a prompt are asked, 0: all of them. For smoke runs: interpreted kernels take their time."""


RECIPES = {
    "smollm2": Recipe(
        smollm2.MASK_TOKEN, Shape(layers=5, taps=5, ffn=1536, length=400), None,
        answer=320, samples=3, prompts=0, per_set=40, new=192, batch=64, target_share=0.0, drafter_share=0.5,
    ),
    "hybrid": Recipe(
        1, Shape(layers=4, taps=4, ffn=1024, batch=64, length=456),
        hybrid.Shape(384, 8, 1024, 6, 2, 2, 4, 128, 4096, batch=64, length=512),
        answer=256, samples=2, prompts=2400, per_set=60, new=192, batch=64, target_share=0.22, drafter_share=0.32,
    ),
}  # fmt: skip

_TINY = {"answer": 32, "samples": 1, "prompts": 12, "per_set": 2, "new": 12, "batch": 8, "chains": (3, 15), "trees": (7, 31),
         "max_model_len": 256, "prompt_tokens": 24, "heats": (0.0, 1.0)}  # fmt: skip
SMOKE = {
    "smollm2": replace(
        RECIPES["smollm2"], drafter=Shape(1, 2, 128, batch=2, length=56, anchors=2),
        **_TINY | {"answer": 16, "prompts": 4, "per_set": 1, "new": 6},  # thirty layers
    ),
    "hybrid": replace(
        RECIPES["hybrid"], drafter=Shape(1, 2, 128, batch=4, length=56, anchors=4),
        hybrid=hybrid.Shape(128, 4, 256, 4, 2, 1, 2, 128, 1024, batch=4, length=96, files=40), **_TINY,
    ),
}  # fmt: skip
