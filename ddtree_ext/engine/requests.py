"""What one request may grow: a pure decision from its sampling parameters."""

from __future__ import annotations

from typing import Any

SWITCH = "ddtree"
"""Key of the per-request switch in `vllm_xargs`: "off" verifies nothing, so the request decodes plainly; a whole number is the most
nodes that its trees may have; "on" is what a request without the switch gets.
"""
_OFF, _ON = ("off", "no", "false"), ("on", "yes", "true")


def request_budget(params: Any, budget: int, width: int) -> int:
    """Nodes that a request's tree may have: 0, the spine alone, the budget, or as many of these as the request asks for.

    Penalties, bad words, thinking budgets and grammars read a row's flat predecessors
    (vllm/v1/worker/gpu/sample): on the spine those are its ancestors, elsewhere they are not.
    """
    if params is None:
        return 0
    most = min(width, budget) if reads_predecessors(params) else budget
    asked = _asked((params.extra_args or {}).get(SWITCH))
    return most if asked is None else min(most, max(0, asked))


def _asked(value: Any) -> int | None:
    """The most nodes that a switch stands for, None for all. What it does not know stands for none: whoever writes a switch
    wants less than all, and plain decoding says the same text.

    Over HTTP a JSON true arrives as the number 1 [vllm/entrypoints/openai/completion/protocol.py, vllm_xargs].
    """
    if isinstance(value, str):
        value = value.strip().casefold()
        value = None if value in _ON else 0 if value in _OFF else value
    elif isinstance(value, bool):
        value = None if value else 0
    if value is None:
        return None
    try:
        return int(value) if float(value).is_integer() else 0
    except (TypeError, ValueError, OverflowError):
        return 0


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
