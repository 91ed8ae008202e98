"""How clear the drafter was about its chain: two arms whose arithmetic differs in bfloat16 may draft differently at a near tie."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from torch import Tensor

from tests.ext.engine.job import PAIRS
from tests.pairs import drafter as dflash
from tests.pairs import target, tokenizer
from tests.pairs.measure import drafts_along

NOISE = 0.2
"""Logit difference that bfloat16 can turn round on these pairs; the targets' own greedy choices are all clearer."""


@cache
def _models(pair: str) -> tuple[Any, dflash.Drafter]:
    folder = PAIRS / pair / "drafter"
    return target.load(PAIRS / pair / "target"), dflash.load(folder, json.loads((folder / "config.json").read_text()))


@cache
def _gaps(pair: str, prompt: str, output: tuple[int, ...]) -> Tensor:
    """Top-1/top-2 gap of the drafter in fp32 at every output position and slot: [len(output) - 1, width]."""
    model, drafter = _models(pair)
    top = drafts_along(model, drafter, tokenizer.build()(prompt).input_ids, list(output)).topk(2, -1).values
    return top[..., 0] - top[..., 1]


def spines_may_part(pair: str, prompt: str, output: list[int], base: int, slot: int) -> bool:
    """Whether two arms' chains, drafted after `base` output tokens, may differ at `slot`: the drafter nearly ties there."""
    return float(_gaps(pair, prompt, tuple(output))[base - 1, slot]) < NOISE


def tree_may_stop(pair: str, prompt: str, output: list[int], base: int, slot: int) -> bool:
    """Whether a tree may stop at `slot` though the other arm's chain went on.

    At a near tie anywhere before, the tree's spine may have left the text; a sibling then saved that token, but the nodes
    below a sibling are fewer than those of the spine.
    """
    return any(spines_may_part(pair, prompt, output, base, earlier) for earlier in range(slot + 1))
