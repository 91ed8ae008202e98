"""Sampling at every node and walking emits the target's own law, exactly: all outcomes of small steps are enumerated.

The target is a random autoregressive table over a few tokens, the drafter a marginal per position. All in float64.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import product
from math import prod

import numpy as np
import pytest

from ddtree_ext.core.tree import Tree, grow

Text = tuple[int, ...]
Law = dict[Text, float]


class Target:
    """Conditional laws p(token | text) over `vocab` tokens, at a temperature."""

    def __init__(self, vocab: int, temperature: float, seed: int) -> None:
        self.vocab, self.temperature, self.seed = vocab, temperature, seed
        self.after = cache(self._after)

    def _after(self, text: Text) -> list[float]:
        logits = np.random.default_rng([self.seed, len(text), *text]).normal(scale=1.5, size=self.vocab)
        weights = np.exp(logits / self.temperature)
        return [float(p) for p in weights / weights.sum()]

    def probability(self, text: Text, given: Text = ()) -> float:
        return prod(self.after((*given, *text[:i]))[token] for i, token in enumerate(text))

    def joint(self, length: int) -> Law:
        return {text: self.probability(text) for text in product(range(self.vocab), repeat=length)}


def draft(target: Target, text: Text, width: int, ranks: int, budget: int) -> Tree:
    """A tree over marginals that resemble the target's first token and are random beyond: never of the samples."""
    logits = np.random.default_rng([width, ranks, len(text), *text]).normal(scale=0.5, size=(width, target.vocab))
    logits[0] += np.log(target.after(text))
    logprobs = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)
    order = np.argsort(-logprobs, axis=1)[:, :ranks]
    return grow(np.take_along_axis(logprobs, order, 1), order.astype(np.int64), budget)


def emitted(tree: Tree, target: Target, text: Text) -> Law:
    """Law of one step's tokens after `text`: every assignment of samples to rows, weighed, and walked."""
    paths = [tuple(tree.tokens[i] for i in tree.path(row)[1:]) for row in range(tree.num_nodes + 1)]
    laws = [target.after((*text, *path)) for path in paths]
    found: Law = defaultdict(float)
    for sampled in product(range(target.vocab), repeat=len(paths)):
        rows = (0, *tree.walk(sampled))
        found[tuple(sampled[row] for row in rows)] += prod(law[token] for law, token in zip(laws, sampled, strict=True))
    return found


def assert_equal(actual: Law, expected: Law) -> None:
    assert actual.keys() == expected.keys()
    assert max(abs(actual[text] - p) for text, p in expected.items()) < 1e-12


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
@pytest.mark.parametrize(
    ("vocab", "width", "ranks", "budget"), [(4, 3, 3, 6), (5, 2, 4, 5), (6, 3, 2, 4), (4, 3, 1, 3)]
)
def test_one_step_and_the_target_after_it(temperature: float, vocab: int, width: int, ranks: int, budget: int) -> None:
    """Accepted tokens, bonus, then plain sampling up to a fixed length: the joint law is the target's."""
    target = Target(vocab, temperature, seed=vocab * budget)
    tree = draft(target, (), width, ranks, budget)
    assert tree.num_nodes == budget
    step = emitted(tree, target, ())
    length = width + 1
    actual = {
        text: sum(step.get(text[:n], 0.0) * target.probability(text[n:], text[:n]) for n in range(1, length + 1))
        for text in product(range(vocab), repeat=length)
    }
    assert_equal(actual, target.joint(length))
    assert sum(p for text, p in step.items() if len(text) > 1) > 0.2, "the tree is hardly ever accepted"


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_steps_in_a_row(temperature: float) -> None:
    """Every step drafts anew from the text so far; the first tokens still follow the target's joint law."""
    target, length = Target(4, temperature, seed=9), 4

    def law(text: Text) -> Law:
        if len(text) >= length:
            return {text[:length]: 1.0}
        total: Law = defaultdict(float)
        tree = draft(target, text, 2, 3, 4)
        for tokens, p in emitted(tree, target, text).items():
            for whole, rest in law((*text, *tokens)).items():
                total[whole] += p * rest
        return total

    assert_equal(law(()), target.joint(length))


def test_rejection_by_min_1_p_over_q_would_be_biased() -> None:
    """Why the walk is what it is: the chain's rule assumes drafts sampled from q, a tree takes the top ranks."""
    p = np.array([0.3, 0.3, 0.4])
    q = np.array([0.6, 0.3, 0.1])
    law, reached, residual = np.zeros(3), 1.0, p
    for token in (0, 1):  # the two best ranks
        accept = min(1.0, residual[token] / q[token])
        law[token] += reached * accept
        reached *= 1 - accept
        residual = np.maximum(residual - q, 0)
        residual = residual / residual.sum()
    law = law + reached * residual
    assert law.sum() == pytest.approx(1)
    assert abs(law - p).sum() / 2 > 0.15
