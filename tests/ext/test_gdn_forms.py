"""Why the delta rule of a tree is solved as it is: other forms in plain torch, with the products of a GPU's matrix units emulated.

The keys of the hard cases have a cosine of 0.99, betas are near 1 and little is forgotten: every row overwrites what the rows
above it wrote. Errors are the largest of u and o over the largest value, against the sequential rule in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from gdn_batch import ancestor_words, chain

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Inverse = Callable[[torch.Tensor, Product], torch.Tensor]


def tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to 10 bits of mantissa."""
    bits = (x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF
    return bits.view(torch.float32)


def one_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return tf32(x) @ tf32(y)


def three_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x_high, y_high = tf32(x), tf32(y)
    return (tf32(x - x_high) @ y_high + x_high @ tf32(y - y_high)) + x_high @ y_high


def by_blocks(a: torch.Tensor, product: Product) -> torch.Tensor:
    """(I + a)^-1 as the kernel builds it, from blocks of twice the size."""
    row = torch.arange(len(a))
    inverse, size = torch.eye(len(a)), 1
    while size < len(a):
        pairs, own = row // (2 * size), row // size
        between = torch.where((pairs[:, None] == pairs) & (own[:, None] != own), a, 0.0)
        inverse = inverse - product(inverse, product(between, inverse))
        size *= 2
    return inverse


def by_series(a: torch.Tensor, product: Product) -> torch.Tensor:
    """(I - a)(I + a^2)(I + a^4)...: half the products, since a to the power of the tree's height is 0."""
    inverse, power, height = torch.eye(len(a)) - a, a, 2
    while height < len(a):
        power = product(power, power)
        inverse = inverse + product(inverse, power)
        height *= 2
    return inverse


@dataclass(frozen=True)
class Case:
    """One V-head: q, k [n, K], v [n, V], g and beta [n], state [V, K] and the tree."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    state: torch.Tensor
    parents: list[int]

    @property
    def sees(self) -> torch.Tensor:
        words = torch.tensor(ancestor_words(self.parents))
        return (words[:, None] >> torch.arange(len(words))) & 1 != 0

    def exact(self) -> torch.Tensor:
        """u and o side by side, [n, 2V] in float64."""
        q, k, v, g, beta, state = (t.double() for t in (self.q, self.k, self.v, self.g, self.beta, self.state))
        states: list[torch.Tensor] = []
        rows = []
        for row, parent in enumerate(self.parents):
            current = (state if parent < 0 else states[parent]) * g[row].exp()
            u = beta[row] * (v[row] - current @ k[row])
            states.append(current + u[:, None] * k[row])
            rows.append(torch.cat([u, states[row] @ q[row]]))
        return torch.stack(rows)

    def error(self, inverse: Inverse, product: Product) -> float:
        """Of the tree form with that inverse and those products."""
        sees = self.sees
        total = torch.where(sees, self.g.double(), 0.0).sum(1)
        between = torch.where(sees, (total[:, None] - total).exp(), 0.0).float()
        fade = total.exp().float()[:, None]
        a = (self.beta[:, None] * between * product(self.k, self.k.T)).tril(-1)
        u = product(inverse(a, product), self.beta[:, None] * (self.v - fade * product(self.k, self.state.T)))
        out = fade * product(self.q, self.state.T) + product(between * product(self.q, self.k.T), u)
        exact = self.exact()
        return float((torch.cat([u, out], 1) - exact).abs().max() / exact.abs().max())


def case(gen: torch.Generator, rows: int, depth: int, alike: float) -> Case:
    """Keys and queries of 128 with a cosine of about `alike`; a spine of `depth` nodes, the other nodes anywhere."""

    def heads() -> torch.Tensor:
        drawn = alike**0.5 * torch.ones(128) + (1 - alike) ** 0.5 * torch.randn(rows, 128, generator=gen)
        return torch.nn.functional.normalize(drawn, dim=1)

    spine = chain(depth + 1)
    beside = [int(torch.randint(0, row, (), generator=gen)) for row in range(len(spine), rows)]
    forgotten = torch.nn.functional.softplus(torch.randn(rows, generator=gen))
    return Case(
        q=heads() * 128**-0.5,
        k=heads(),
        v=torch.randn(rows, 128, generator=gen),
        g=-(0.01 if alike else 3.0) * forgotten,
        beta=torch.sigmoid(torch.randn(rows, generator=gen) + (6.0 if alike else 1.0)),
        state=torch.randn(128, 128, generator=gen) * 0.3,
        parents=[*spine, *beside],
    )


TREES = [(16, 15), (32, 15), (64, 15), (64, 63)]


@pytest.mark.parametrize("alike", [0.0, 0.99])
@pytest.mark.parametrize(("rows", "depth"), TREES)
def test_blocks_with_three_products_have_float32s_accuracy(
    rng: torch.Generator, rows: int, depth: int, alike: float
) -> None:
    assert case(rng, rows, depth, alike).error(by_blocks, three_products) < 3e-6


@pytest.mark.parametrize(("rows", "depth"), TREES)
def test_one_product_does_not(rng: torch.Generator, rows: int, depth: int) -> None:
    assert case(rng, rows, depth, 0.0).error(by_blocks, one_product) > 1e-4


@pytest.mark.parametrize(("rows", "depth"), TREES)
def test_a_series_loses_its_digits_to_keys_that_resemble_each_other(
    rng: torch.Generator, rows: int, depth: int
) -> None:
    """Already without any emulation, in float32."""
    hard = case(rng, rows, depth, 0.99)
    lost = hard.error(by_series, torch.matmul) / hard.error(by_blocks, torch.matmul)
    assert lost > (30 if depth == 15 else 1e6)
