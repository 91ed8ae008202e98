"""What one request may grow: a pure decision from its sampling parameters."""

from __future__ import annotations

from typing import Any

SWITCH = "ddtree"
"""Key of the per-request switch in `vllm_xargs`: "off" verifies nothing, so the request decodes plainly; a whole number is the most
nodes that its trees may have.
"""


def request_budget(params: Any, budget: int, width: int) -> int:
    """Nodes that a request's tree may have: 0, the spine alone, the budget, or as many of these as the request asks for.

    Penalties, bad words, thinking budgets and grammars read a row's flat predecessors
    (vllm/v1/worker/gpu/sample): on the spine those are its ancestors, elsewhere they are not.
    """
    if params is None:
        return 0
    asked = (params.extra_args or {}).get(SWITCH)
    if asked == "off":
        return 0
    most = min(width, budget) if reads_predecessors(params) else budget
    return min(most, max(0, asked)) if isinstance(asked, int) and not isinstance(asked, bool) else most


def reads_predecessors(params: Any) -> bool:
    """Whether the request's token choice depends on the tokens before it in the same step."""
    return bool(
        params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty != 1.0
        or params.bad_words
        or params.structured_outputs is not None
        or params.thinking_token_budget is not None
    )
