"""The target writes the drafter's training text, PAIR/text.npz, at T = 0, 0.7 and 1 in stock vLLM; and what it is asked."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.pairs import hybrid, library, store, texts
from benchmarks.pairs.engine import Ask, Turn, answered
from benchmarks.pairs.recipes import Recipe

HEATS = (0.0, 0.7, 1.0)
ANSWER_RUN = 10
BATCH = {"cuda": 512, "cpu": 8}
WRITERS = {"cuda": 6, "cpu": 1}
"""Engines that write at once: an eager step of a model this small is one core's launches, and a card has room for several."""


def chat_ids(tokenizer: Any, text: str) -> list[int]:
    """A user turn in the target's chat format, up to where the answer begins."""
    made = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
    return list(made["input_ids"] if hasattr(made, "keys") else made)


def prompts(pair: Path, recipe: Recipe) -> tuple[list[texts.Prompt], list[texts.Prompt], Any]:
    """(training, evaluation, tokenizer), chosen once. Raises SystemExit where evaluation shares text with training."""
    from transformers import AutoTokenizer

    path = pair / "prompts.json"
    if not path.is_file():
        made = _chosen(recipe)
        path.write_text(json.dumps([[asdict(prompt) for prompt in side] for side in made]) + "\n")
    learn, evaluation = ([texts.Prompt(**prompt) for prompt in side] for side in json.loads(path.read_text()))
    return learn, evaluation, AutoTokenizer.from_pretrained(pair / "target")


def _chosen(recipe: Recipe) -> tuple[list[texts.Prompt], list[texts.Prompt]]:
    if recipe.hybrid:
        held = hybrid.text_of(recipe.hybrid)
        return library.training_windows(held, recipe.prompts, seed=1), library.prompts(held, recipe.per_set, seed=2)
    learn, evaluation = texts.training_prompts(), texts.evaluation_prompts(recipe.per_set)
    texts.refuse_shared([prompt.text for prompt in evaluation], (prompt.text for prompt in learn))
    random.Random(3).shuffle(learn)
    return learn[: recipe.prompts or None], evaluation


def ids_of(tokenizer: Any, recipe: Recipe, chosen: list[texts.Prompt]) -> list[list[int]]:
    """What each prompt is to the target: a chat's user turn, or a text to go on with."""
    if recipe.hybrid:
        ids = [list(tokenizer(prompt.text, add_special_tokens=False)["input_ids"]) for prompt in chosen]
    else:
        ids = [chat_ids(tokenizer, prompt.text) for prompt in chosen]
    return [row[-recipe.prompt_tokens :] for row in ids]


def asks(pair: Path, recipe: Recipe, device: str, ids: list[list[int]], seconds: float) -> list[Ask]:
    """One ask for each of the engines that write at once: every so-manieth prompt, at every temperature."""
    shares = [ids[writer :: WRITERS[device]] for writer in range(WRITERS[device])]
    return [
        Ask(
            "ar", str(pair), device, [share if heat == 0 else share * recipe.samples for heat in HEATS], list(HEATS),
            recipe.answer, BATCH[device], [Turn("text", BATCH[device], list(range(len(HEATS))))], recipe.max_model_len,
            seed=7 + 100_000 * writer, together=True, seconds=seconds,
        ) for writer, share in enumerate(shares) if share
    ]  # fmt: skip


def write(pair: Path, recipe: Recipe, device: str, seconds: float, limit: float) -> store.Sequences:
    """Writes PAIR/text.npz, once: as much as there is after `seconds`; an engine that has not ended after `limit` is given up.

    Answers that hold a run of evaluation's words are left out. Raises SystemExit where no engine wrote anything.
    """
    path = pair / "text.npz"
    if path.is_file():
        return store.load(path)
    learn, evaluation, tokenizer = prompts(pair, recipe)
    asked = asks(pair, recipe, device, ids_of(tokenizer, recipe, learn), seconds)
    with ThreadPoolExecutor(len(asked)) as pool:
        folders = [pair / "engines" / f"writer-{writer}" for writer in range(len(asked))]
        wrote = list(pool.map(answered, asked, folders, [limit] * len(asked)))
    for _, errors in wrote:
        for error in errors.values():
            print(f"text: {error[-1500:]}", flush=True)
    rows, lengths, heats = [], [], []
    for ask, (answers, _) in zip(asked, wrote, strict=True):
        for group, written, heat in zip(ask.groups, answers["text"].tokens if answers else [], HEATS, strict=False):
            begun = [i for i, answer in enumerate(written) if answer]
            clean = without(tokenizer.batch_decode([written[i] for i in begun]), [prompt.text for prompt in evaluation])
            for index in [begun[i] for i in clean]:
                rows.append(group[index] + written[index])
                lengths.append(len(group[index]))
                heats.append(heat)
            print(
                f"text at T={heat}: {len(begun)} answers to {len(written)}, {len(begun) - len(clean)} left out",
                flush=True,
            )
    if not rows:
        raise SystemExit("no engine wrote any text; what they said is above")
    order = list(range(len(rows)))
    random.Random(4).shuffle(order)
    text = store.Sequences(tuple(rows), tuple(lengths), tuple(heats)).chosen(order)
    text.save(path)
    return text


def without(answers: Sequence[str], held: Sequence[str]) -> list[int]:
    """Which answers hold no run of ANSWER_RUN words of any held-out text."""
    wanted: set[tuple[str, ...]] = set().union(*(texts.runs(text, ANSWER_RUN) for text in held))
    return [i for i, answer in enumerate(answers) if not wanted & texts.runs(answer, ANSWER_RUN)]
