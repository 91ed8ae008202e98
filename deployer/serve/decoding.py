"""How the engine decodes: plainly, with DFlash's chain, or with a tree; what `serve` and `bench` choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deployer.checkpoint import profiles
from deployer.errors import UsageError
from deployer.inventory.model import Inventory

Kind = Literal["autoregressive", "chain", "tree"]


@dataclass(frozen=True)
class Decoding:
    """`tokens` is vLLM's num_speculative_tokens: the chain's K, or the tree's node budget; 0 without drafts."""

    kind: Kind
    tokens: int

    def __str__(self) -> str:
        return {"autoregressive": "autoregressive", "chain": f"DFlash chain, K={self.tokens}"}.get(
            self.kind, f"tree, budget {self.tokens}"
        )


def drafter_width(inventory: Inventory) -> int:
    """Tokens that the drafter predicts in one pass: block_size - 1 of its profile."""
    return profiles.load(inventory.drafter.profile).config.block_size - 1


def autoregressive() -> Decoding:
    """No drafts."""
    return Decoding("autoregressive", 0)


def chain(inventory: Inventory) -> Decoding:
    """Stock DFlash at [bench] chain_tokens, else at the drafter's width."""
    return Decoding("chain", inventory.bench.chain_tokens or drafter_width(inventory))


def tree(inventory: Inventory) -> Decoding:
    """A tree of [tree] budget nodes; a budget below the drafter's width is refused here, not after the model loaded."""
    width = drafter_width(inventory)
    if inventory.tree.budget < width:
        raise UsageError(
            f"[tree] budget {inventory.tree.budget} is below the drafter's width {width}, the spine's length",
            where=f"inventory {inventory.name}",
            remedy=f"set a budget of {width} to 63, or [tree] enabled = false for the plain chain",
        )
    return Decoding("tree", inventory.tree.budget)


def served(inventory: Inventory) -> Decoding:
    """What the service runs: the tree, or the chain when the inventory switches the tree off."""
    return tree(inventory) if inventory.tree.enabled else chain(inventory)
