"""The prompts of a bench: the inventory's own, or a few of several kinds."""

from __future__ import annotations

import json

from deployer.errors import UsageError
from deployer.inventory.model import Inventory

# Code, mathematics, prose and a list: drafts are accepted very differently from one kind to the next.
DEFAULT = (
    "Write a Python function that returns the n-th Fibonacci number without recursion.\n",
    "Explain step by step why the square root of two is irrational.\n",
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey? Show the working.\n",
    "Summarise in three sentences how a refrigerator moves heat from inside to outside.\n",
    "Write a SQL query that finds the three customers with the largest total of orders.\n",
    "Tell the beginning of a story about a lighthouse keeper who finds a letter.\n",
    "List ten things to check before a long hike in the mountains, one line each.\n",
    "Translate into French, German and Spanish: The meeting was moved to Thursday afternoon.\n",
)


def texts(inventory: Inventory) -> tuple[str, ...]:
    """The prompts in their order. Raises UsageError that names the line which is none."""
    path = inventory.bench.prompts
    if path is None:
        return DEFAULT
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise UsageError(
            f"the bench's prompts cannot be read: {error.strerror}", where=str(path), remedy="correct [bench] prompts"
        ) from error
    found = tuple(_prompt(line, number, str(path)) for number, line in enumerate(lines, start=1))
    if not found:
        raise UsageError("there is no prompt in it", where=str(path), remedy='write {"prompt": "..."} lines')
    return found


def as_jsonl(prompts: tuple[str, ...], count: int) -> str:
    """`count` lines as `vllm bench serve` reads them, the prompts repeated in their order as often as needed."""
    return "".join(json.dumps({"prompt": prompts[index % len(prompts)]}) + "\n" for index in range(count))


def _prompt(line: str, number: int, path: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError):
        prompt = None
    if not isinstance(prompt, str) or not prompt:
        raise UsageError(f"line {number} is no prompt", where=path, remedy='each line has to be {"prompt": "..."}')
    return prompt
