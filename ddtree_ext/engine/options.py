"""The tree's own options: `--additional-config '{"ddtree": {...}}'`. Everything else is vLLM's ordinary DFlash configuration."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

MAX_BUDGET = 63
"""Nodes of the largest tree: one ancestor word of 64 bits per row, the root included."""


class OptionError(ValueError):
    """An option that cannot be honoured; the message names it and what to do."""


@dataclass(frozen=True)
class DDTreeOptions:
    """topk: ranks kept per drafted position; 1 grows nothing but the spine."""

    topk: int = 16

    @classmethod
    def from_config(cls, vllm_config: Any) -> DDTreeOptions:
        """Reads `additional_config["ddtree"]`; unknown keys and wrong values raise OptionError."""
        additional = vllm_config.additional_config if isinstance(vllm_config.additional_config, dict) else {}
        given = additional.get("ddtree", {})
        for key in additional:
            if key != "ddtree" and get_close_matches(key.casefold(), ["ddtree"], cutoff=0.75):
                raise OptionError(
                    f'additional_config has {key!r}, which nothing reads; the tree\'s options are in "ddtree"'
                )
        if not isinstance(given, dict):
            raise OptionError(f'additional_config["ddtree"] must be a mapping, got {given!r}')
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise OptionError(
                f'additional_config["ddtree"] has no option {", ".join(unknown)}; known are {", ".join(sorted(known))}'
            )
        options = cls(**given)
        if isinstance(options.topk, bool) or not isinstance(options.topk, int) or not 1 <= options.topk <= MAX_BUDGET:
            raise OptionError(f'additional_config["ddtree"]["topk"] must be 1 to {MAX_BUDGET}, got {options.topk!r}')
        return options


def drafter_width(vllm_config: Any) -> int:
    """Tokens the drafter predicts in one pass, block_size - 1: from the checkpoint, never from num_speculative_tokens.

    More MASK tokens than it was trained with would degrade the drafts without an error.
    """
    config = vllm_config.speculative_config.draft_model_config.hf_config
    block_size = getattr(config, "block_size", None)
    if not isinstance(block_size, int) or block_size < 2:
        raise OptionError(
            f"the drafter's config.json has no usable block_size (found {block_size!r}); DFlash needs 2 or more"
        )
    return block_size - 1


def node_budget(vllm_config: Any) -> int:
    """The largest number of nodes of one request's tree, without the root: num_speculative_tokens."""
    budget, width = vllm_config.speculative_config.num_speculative_tokens, drafter_width(vllm_config)
    if width > MAX_BUDGET:
        raise OptionError(
            f"the drafter predicts {width} tokens in one pass, and a tree has at most {MAX_BUDGET} nodes: "
            f"its block_size may be {MAX_BUDGET + 1} at most, found {width + 1}"
        )
    if not width <= budget <= MAX_BUDGET:
        raise OptionError(
            f"num_speculative_tokens is the tree's node budget and must be {width} (the drafter's width) to {MAX_BUDGET}, "
            f"got {budget}. A smaller budget for large batches goes into num_speculative_tokens_per_batch_size."
        )
    return int(budget)
