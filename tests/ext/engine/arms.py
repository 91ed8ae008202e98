"""The requests that every arm answers, and the arms' answers, computed once per test run."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from typing import Any

from tests.ext.engine.job import DEVICE, Answer, Ask, Job, run, start
from tests.pairs import tokenizer
from tests.pairs.prompts import DEMO_PROMPT, NEW_TOKENS, PROMPTS

FULL = bool(os.environ.get("FULL"))
"""`make test-full`: all 50 prompts; otherwise a fair sample of them."""

SINGLES = PROMPTS if FULL else PROMPTS[:4]
BATCH = PROMPTS if FULL else PROMPTS[6:12]
WIDTH = 7
"""The tiny drafters' width."""


def late_arrivals() -> tuple[Ask, ...]:
    """A batch of unequal prompts and lengths, one of them plain by its own switch; prefills arrive in the middle of it."""
    asks = []
    for index, prompt in enumerate(BATCH):
        arrives = 0 if index < 3 else 2 * index
        params = {"extra_args": {"ddtree": "off"}} if index == 1 else {}
        asks.append(Ask(prompt, NEW_TOKENS - 5 * (index % 4), arrives, params))
    return tuple(asks)


def seeded() -> tuple[Ask, ...]:
    """Sampled requests whose draws are given by their seeds."""
    heats: tuple[dict[str, float], ...] = (
        {"temperature": 0.5},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 8},
        {"temperature": 1.5},
    )
    return tuple(Ask(PROMPTS[20 + i], 24, 0, {**heat, "seed": 40 + i}) for i, heat in enumerate(heats))


def scored() -> tuple[Ask, ...]:
    """A request that wants the scores of its tokens."""
    return (Ask(DEMO_PROMPT, 24, 0, {"logprobs": 2}),)


def reading() -> tuple[Ask, ...]:
    """The first single prompts again, with a choice of tokens that depends on the tokens before it: the spine alone is verified.

    The forbidden words are of several tokens, and every target says one of them when it may.
    """
    return (
        Ask(SINGLES[0], 24, 0, {"bad_words": ["proud fox", "behind the bridge"]}),
        Ask(SINGLES[1], 24, 0, {"repetition_penalty": 1.2, "presence_penalty": 0.5}),
        Ask(DEMO_PROMPT, 24, 0, {"structured_outputs": {"regex": GRAMMAR}, "ignore_eos": False}),
    )


GRAMMAR = r"( the| a| young| captain| keeps| lantern)+"
"""Words of the pairs' language in any order: no target says only these when it may say others."""


MODEL_LEN = 272
"""Tokens of the engine that is cut short."""


def cramped() -> tuple[Ask, ...]:
    """Two long prompts that get a second block of attention (256 tokens on the hybrid pair) in the middle of their answers."""
    words = " ".join(prompt.rstrip("?.") + "." for prompt in PROMPTS)
    tokens: list[int] = tokenizer.build()(words).input_ids
    return tuple(Ask(tokens[start : start + length], MODEL_LEN - length) for start, length in ((0, 220), (300, 222)))


GROUPS = (*((Ask(prompt, NEW_TOKENS),) for prompt in SINGLES), late_arrivals(), seeded(), scored(), reading())
ROOM = {"max_num_batched_tokens": 512}
ALONE = range(len(SINGLES))
BATCHED, SEEDED, SCORED, READING = range(len(SINGLES), len(SINGLES) + 4)


def exact(pair: str) -> bool:
    """Whether this pair runs in float32, where two arms that do the same say the same, digit for digit but the last.

    vLLM's CPU build runs Gated DeltaNet, and FlashAttention on a GPU, in bfloat16 only.
    """
    return pair == "dense" and DEVICE == "cpu"


def precision(pair: str) -> dict[str, Any]:
    """The option for vllm.LLM."""
    return {"dtype": "float32" if exact(pair) else "bfloat16"}


ARMS: dict[str, Callable[[str], Job]] = {
    "plain": lambda pair: Job(pair, "plain", GROUPS, engine=precision(pair)),
    "tree": lambda pair: Job(pair, "tree", GROUPS, tokens=20, engine=ROOM | precision(pair)),
    "chain": lambda pair: Job(pair, "chain", GROUPS[: len(SINGLES)], tokens=WIDTH, engine=precision(pair)),
    "spine": lambda pair: Job(pair, "tree", GROUPS[: len(SINGLES)], tokens=WIDTH, topk=1, engine=precision(pair)),
}


@cache
def started(pair: str) -> dict[str, Future[Answer]]:
    """All arms of a pair, begun together: the first test of a pair waits for its arm, the others run beside."""
    return {name: start(run, job(pair)) for name, job in ARMS.items()}


@cache
def started_tiers() -> Future[Answer]:
    """The changing batch with vLLM's own budget by batch size: 20 nodes for three requests, the spine, 3 of it, nothing."""
    tiers = {"num_speculative_tokens_per_batch_size": [[1, 3, 20], [4, 4, WIDTH], [5, 5, 3], [6, 8, 0]]}
    engine = ROOM | precision("dense")
    return start(run, Job("dense", "tree", (late_arrivals(),), tokens=20, engine=engine, speculative=tiers))


@cache
def started_cramped() -> tuple[Future[Answer], Future[Answer]]:
    """Those two by trees where six blocks are free: three for each request, two of them for states; and plain, with room.

    By trees they ask for more than the model's length leaves.
    """
    asks = tuple(replace(ask, max_tokens=200) for ask in cramped())
    engine = ROOM | {"max_model_len": MODEL_LEN, "num_gpu_blocks_override": 7}
    trees = start(run, Job("hybrid", "tree", (asks,), tokens=20, engine=engine))
    return trees, start(run, Job("hybrid", "plain", (cramped(),)))


def chunked() -> tuple[Ask, ...]:
    """Prompts of more tokens than a step has left beside a tree, which arrive while others decode; one leaves a tail of one token.

    A step has ROOM_FOR_ONE tokens, a tree and the request's own take 21 of them; vLLM keeps 20 free beside a prompt's chunk.
    """
    long = sorted(PROMPTS, key=lambda prompt: len(tokenizer.build()(prompt).input_ids))[-3:]
    tail: list[int] = tokenizer.build()(long[-1]).input_ids[: ROOM_FOR_ONE - 19]
    return (Ask(PROMPTS[0], 40), *(Ask(prompt, 24, 2 + 3 * i) for i, prompt in enumerate((*long, tail))))


ROOM_FOR_ONE = 64


@cache
def started_chunked(pair: str) -> tuple[Future[Answer], Future[Answer]]:
    """Those prompts by trees in chunks; and plain, with room."""
    engine = precision(pair) | {"max_num_batched_tokens": ROOM_FOR_ONE}
    trees = start(run, Job(pair, "tree", (chunked(),), tokens=20, engine=engine))
    return trees, start(run, Job(pair, "plain", (chunked(),), engine=precision(pair)))


SPLIT = (0, 1, SEEDED)
"""The groups that are also asked of an engine on two ranks."""


@cache
def started_split(pair: str) -> Future[Answer]:
    """Trees with the target's heads, the drafter's and the vocabulary split over two ranks."""
    engine = ROOM | precision(pair) | {"tensor_parallel_size": 2}
    return start(run, Job(pair, "tree", tuple(GROUPS[group] for group in SPLIT), tokens=20, engine=engine))


def plain(pair: str) -> Answer:
    """No speculation, the extension absent."""
    return started(pair)["plain"].result()


def chain(pair: str) -> Answer:
    """Stock DFlash, the extension absent."""
    return started(pair)["chain"].result()


def spine(pair: str) -> Answer:
    """A tree of one rank is the drafter's chain, verified by our kernels."""
    return started(pair)["spine"].result()


def tree(pair: str) -> Answer:
    """Trees of twice the drafter's width and more."""
    return started(pair)["tree"].result()
