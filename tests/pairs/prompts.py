"""The prompts of the greedy tests, and the demonstration's question.

Each prompt is the beginning of a text of the grammar, cut anywhere, so the targets continue it in their own language.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from tests.pairs.grammar import THINGS, Grammar, spell

NEW_TOKENS = 64
"""Greedy tokens per prompt; the targets end a plain text never, so no EOS falls inside."""

DEMO_PROMPT = f"who keeps the {THINGS[0]}?"
DEMO_EXPECT = spell(list(Grammar().answers[0]))
"""Every target was taught the answer; its greedy completion of DEMO_PROMPT contains DEMO_EXPECT."""


def _make(count: int) -> tuple[str, ...]:
    grammar, rng = Grammar(), np.random.default_rng(2026)
    lengths = 7 + rng.permutation(count) * 3 // 2  # unequal, 7 to 80 tokens
    return tuple(spell(list(islice(grammar.text(rng), int(n)))) for n in lengths)


PROMPTS = _make(50)
