"""Tokens by the number of requests in a step, in vLLM's form of num_speculative_tokens_per_batch_size."""

from __future__ import annotations

from deployer.inventory.values import Whole

Table = tuple[tuple[Whole, Whole, Whole], ...]
"""(first number of requests, last, tokens); the last one's tokens hold above, too."""


def require_consistent(table: Table, most: int, called: str) -> None:
    """Raises ValueError that says what contradicts itself. `most` is the largest number of tokens, by the name `called`."""
    expected = 1
    for first, last, tokens in table:
        if first != expected or last < first:
            raise ValueError(f"the sizes of table go up from 1 without a gap: {first} to {last} does not follow")
        if not 0 <= tokens <= most:
            raise ValueError(f"table has {tokens} tokens, and {called} is {most}")
        expected = last + 1
    if table and not table[0][2]:
        raise ValueError(
            "table has 0 tokens for a request alone: the gate sees by one that drafts are accepted. Give it some, or "
            "leave table out"
        )
