"""The prompts of a bench: sets that come with the program, the inventory's own, any JSONL, and vLLM's data sets."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from deployer.errors import UsageError
from deployer.inventory.model import Inventory

# Code, mathematics, prose and a list: drafts are accepted very differently from one kind to the next.
MIXED = (
    "Write a Python function that returns the n-th Fibonacci number without recursion.\n",
    "Explain step by step why the square root of two is irrational.\n",
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey? Show the working.\n",
    "Summarise in three sentences how a refrigerator moves heat from inside to outside.\n",
    "Write a SQL query that finds the three customers with the largest total of orders.\n",
    "Tell the beginning of a story about a lighthouse keeper who finds a letter.\n",
    "List ten things to check before a long hike in the mountains, one line each.\n",
    "Translate into French, German and Spanish: The meeting was moved to Thursday afternoon.\n",
)
BUNDLED = ("code", "maths", "chat", "extraction", "long")
_VLLM = "vllm:"
# Those of `vllm bench serve` that are made of text alone.
VLLM_SETS = ("sharegpt", "burstgpt", "random", "hf", "prefix_repetition", "spec_bench", "speed_bench", "timed_trace")
# What the bench decides itself; a data set's options must not say it once more.
_DECIDED = {"dataset-name", "num-prompts", "seed", "max-concurrency", "temperature", "output-len", "result-filename"}


@dataclass(frozen=True)
class PromptSet:
    """`prompts` are texts; `chat` says that they are meant for a chat template. One of vLLM's own data sets has no
    texts but `options`, with which `vllm bench serve` makes or finds them on the host.
    """

    name: str
    prompts: tuple[str, ...] = ()
    chat: bool = False
    options: tuple[tuple[str, str], ...] = ()

    def jsonl(self, count: int) -> str:
        """`count` lines as `vllm bench serve` reads them, the prompts repeated in their order as often as needed."""
        chosen = (self.prompts[index % len(self.prompts)] for index in range(count if self.prompts else 0))
        return "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in chosen)

    def digest(self, count: int) -> str:
        """Of what decides the texts of `count` requests."""
        return hashlib.sha256(f"{self.options}\0{self.jsonl(count)}".encode()).hexdigest()[:12]


def texts(inventory: Inventory) -> tuple[str, ...]:
    """The inventory's own prompts, in their order."""
    return named("", inventory).prompts


def named(word: str, inventory: Inventory) -> PromptSet:
    """A set by its name: a bundled one, `mixed`, a .jsonl file, `vllm:NAME[,option=value...]`; "" is the inventory's."""
    if not word:
        path = inventory.bench.prompts
        return PromptSet("mixed", MIXED, chat=True) if path is None else PromptSet(path.stem, _file(path))
    if word == "mixed":
        return PromptSet(word, MIXED, chat=True)
    if word in BUNDLED:
        return PromptSet(word, bundled(word), chat=True)
    if word.startswith(_VLLM):
        return _of_vllm(word)
    if word.endswith(".jsonl"):
        return PromptSet(Path(word).stem, _file(Path(word)))
    raise UsageError(
        f"there is no prompt set {word!r}",
        where="--sets",
        remedy=f"mixed, {', '.join(BUNDLED)}, a .jsonl file, or vllm:NAME for one of vLLM's data sets",
    )


def bundled(name: str) -> tuple[str, ...]:
    """One of the sets that come with the program. The long ones have ten documents before a question about some."""
    lines = _bundle(name)
    if name != "long":
        return tuple(line["prompt"] for line in lines)
    documents = [(line["title"], line["text"]) for line in _bundle("documents")]
    return tuple(_about(documents, line["documents"], line["prompt"]) for line in lines)


def _about(documents: list[tuple[str, str]], titles: list[str], question: str) -> str:
    """All documents, another one first each time, and which of them are meant."""
    first = [title for title, _ in documents].index(titles[0])
    turned = documents[first:] + documents[:first]
    parts = [f'<document title="{title}">\n{text}\n</document>' for title, text in turned]
    listed = "\n".join(f"- {title}" for title in titles)
    return "\n\n".join([*parts, f"Use only these of the documents:\n{listed}", question])


def _bundle(name: str) -> list[dict[str, Any]]:
    text = resources.files("deployer.bench").joinpath("sets", f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _of_vllm(word: str) -> PromptSet:
    name, *pairs = word.removeprefix(_VLLM).split(",")
    options = tuple((key.lstrip("-"), value) for key, _, value in (pair.partition("=") for pair in pairs))
    wrong = [key for key, value in options if not key or not value or key in _DECIDED]
    if name not in VLLM_SETS or wrong:
        raise UsageError(
            f"{word!r} is no data set of vLLM's"
            + (f": {wrong[0] or 'an option'} cannot be said here" if wrong else ""),
            where="--sets",
            remedy=f"vllm:NAME[,option=value...], as in vllm:random,random-input-len=512; NAME is {', '.join(VLLM_SETS)}",
        )
    return PromptSet(word, options=(("dataset-name", name), *options))


def _file(path: Path) -> tuple[str, ...]:
    """A file's prompts in their order. Raises UsageError that names the line which is none."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise UsageError(
            f"the bench's prompts cannot be read: {error.strerror}",
            where=str(path),
            remedy="correct [bench] prompts or --sets",
        ) from error
    found = tuple(_prompt(line, number, str(path)) for number, line in enumerate(lines, start=1))
    if not found:
        raise UsageError("there is no prompt in it", where=str(path), remedy='write {"prompt": "..."} lines')
    return found


def _prompt(line: str, number: int, path: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError):
        prompt = None
    if not isinstance(prompt, str) or not prompt:
        raise UsageError(f"line {number} is no prompt", where=path, remedy='each line has to be {"prompt": "..."}')
    return prompt
