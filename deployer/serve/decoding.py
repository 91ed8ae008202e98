"""How the engine decodes: plainly, with DFlash's chain, or with a tree; what `serve` and `bench` choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from deployer.checkpoint import profiles
from deployer.errors import UsageError
from deployer.inventory.given import SEQS, most_requests
from deployer.inventory.model import Inventory
from deployer.inventory.tiers import Table
from deployer.serve import tuned
from deployer.serve.tuned import Kind

MAX_BUDGET = 63
TreeOrChain = Literal["chain", "tree"]


@dataclass(frozen=True)
class Decoding:
    """`tokens` is vLLM's num_speculative_tokens: the chain's K, or the tree's node budget; 0 without drafts.

    `table` is vLLM's num_speculative_tokens_per_batch_size; without one, `tokens` holds for every batch.
    """

    kind: Kind
    tokens: int
    table: Table = ()

    def __str__(self) -> str:
        if self.kind == "autoregressive":
            return "autoregressive"
        name = "tree, budget " if self.kind == "tree" else "DFlash chain, K="
        *inner, last = self.table or ((1, 1, self.tokens),)
        parts = [f"{tokens} up to {requests(last)}" for _, last, tokens in inner]
        return name + ", ".join([*parts, f"{last[2]} above" if parts else str(last[2])])

    @property
    def alone(self) -> int:
        """Tokens that are verified beside a request's own when it is the only one."""
        return self.table[0][2] if self.table else self.tokens


def requests(count: int) -> str:
    """So many of them, in words."""
    return f"{count} request{'' if count == 1 else 's'}"


def tiered(kind: TreeOrChain, width: int, tiers: Sequence[tuple[int, int]]) -> Decoding:
    """From (tokens, up to so many requests), rising in requests; a drafter of `width`. The last holds above, too.

    Neighbours of equal tokens become one. A tree whose largest tier is below the drafter's width is still drafted at
    that width: vLLM takes the first nodes, and those are the spine's.
    """
    table, first = list[tuple[int, int, int]](), 1
    for tokens, group in groupby(tiers, key=lambda tier: tier[0]):
        last = max(up_to for _, up_to in group)
        table.append((first, last, tokens))
        first = last + 1
    widest = max(tokens for *_, tokens in table)
    whole = max(widest, width) if kind == "tree" else widest
    return Decoding(kind, whole, () if len(table) == 1 and widest == whole else tuple(table))


def kind_of(said: str) -> Kind:
    """Of a decoding as it says itself, which is how a deployment keeps it."""
    if said.startswith("autoregressive"):
        return "autoregressive"
    return "tree" if said.startswith("tree") else "chain"


def drafter_width(inventory: Inventory) -> int:
    """Tokens that the drafter predicts in one pass: block_size - 1 of its profile."""
    return profiles.load(inventory.drafter.profile).config.block_size - 1


def autoregressive() -> Decoding:
    """No drafts."""
    return Decoding("autoregressive", 0)


def chain(inventory: Inventory) -> Decoding:
    """Stock DFlash: as it was tuned, else at [bench] chain_tokens, else at the drafter's width."""
    found = _tuned(inventory) if inventory.tree.enabled else None
    if found is not None and found.kind == "chain":
        return found
    return Decoding("chain", inventory.bench.chain_tokens or drafter_width(inventory))


def tree(inventory: Inventory) -> Decoding:
    """The tree that was tuned, else one of [tree] budget nodes, or as [tree] table has them; what the drafter's width or
    the engine's requests contradict is refused here, not after the model loaded.
    """
    found = _tuned(inventory)
    if found is not None and found.kind == "tree":
        return found
    width = drafter_width(inventory)
    if inventory.tree.budget < width:
        raise UsageError(
            f"[tree] budget {inventory.tree.budget} is below the drafter's width {width}, the spine's length",
            where=f"inventory {inventory.name}",
            remedy=(f"set a budget of {width} to {MAX_BUDGET}, or " if width <= MAX_BUDGET else "")
            + "[tree] enabled = false for the plain chain",
        )
    table, most = inventory.tree.table, most_requests(inventory)
    if table and most is not None and table[-1][1] > most:
        raise UsageError(
            f"[tree] table goes to {table[-1][1]} requests, and a step takes {most}",
            where=f"inventory {inventory.name}",
            remedy=f"end it at {most}, or raise [serve.options] {SEQS}",
        )
    return Decoding("tree", inventory.tree.budget, table)


def served(inventory: Inventory) -> Decoding:
    """What the service runs: what was tuned, else the tree; the chain when the inventory switches the tree off."""
    if not inventory.tree.enabled:
        return chain(inventory)
    return _tuned(inventory) or tree(inventory)


def _tuned(inventory: Inventory) -> Decoding | None:
    path = inventory.tree.tuned
    if path is None:
        return None
    if not path.exists():
        raise UsageError(
            "the file that [tree] tuned names is not there",
            where=str(path),
            remedy=f"ddtree-deploy tune {inventory.name} makes it; until then take the line out, and budget holds",
        )
    found, width = tuned.read(path), drafter_width(inventory)
    most = {"tree": MAX_BUDGET, "chain": width, "autoregressive": 0}[found.kind]
    if found.tokens > most or (found.kind == "tree" and found.tokens < width):
        raise UsageError(
            f"{found.tokens} tokens do not go with a {found.kind} and this drafter, which predicts {width} at a time",
            where=str(path),
            remedy=f"it was made for another drafter: ddtree-deploy tune {inventory.name}",
        )
    return Decoding(found.kind, found.tokens, found.table)
