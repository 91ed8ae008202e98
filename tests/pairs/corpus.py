"""Training batches: texts of the grammar, some opened by a question and its answer, some in the chat template."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from tests.pairs.grammar import THINGS, Grammar
from tests.pairs.tokenizer import EOS, PAD, build, word_ids

QUESTIONS, CHATS = 0.15, 0.10
"""Shares of the texts that open with a question, and that are a chat."""


class Corpus:
    """A seeded, endless stream of token sequences."""

    def __init__(self, seed: int, temperature: float = 1.0) -> None:
        self._rng = np.random.default_rng(seed)
        self._grammar = Grammar(temperature)
        self._tokenizer = build()

    def sequence(self, length: int) -> list[int]:
        """``length`` token ids: a text, a question with its answer and a text, or a chat filled up with padding."""
        kind, which = self._rng.random(), int(self._rng.integers(len(THINGS)))
        question, answer = ["who", "keeps", "the", THINGS[which], "?"], list(self._grammar.answers[which])
        if kind < CHATS:
            turn = [{"role": "user", "content": f"who keeps the {THINGS[which]}?"}]
            asked = self._tokenizer.apply_chat_template(turn, add_generation_prompt=True)["input_ids"]
            ids = [*asked, *word_ids(answer), EOS]
            return [*ids, *[PAD] * (length - len(ids))]
        words = [*question, *answer] if kind < CHATS + QUESTIONS else []
        words += islice(self._grammar.text(self._rng), length - len(words))
        return word_ids(words)

    def batches(self, batch: int, length: int) -> Iterator[Tensor]:
        """Batches of token ids, int64 [batch, length]."""
        while True:
            yield torch.tensor([self.sequence(length) for _ in range(batch)])
