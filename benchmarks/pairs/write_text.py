"""The target writes the drafter's training text, PAIR/text.npz, at T = 0, 0.7 and 1 in stock vLLM; and what it is asked."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.pairs import hybrid, library, store, texts
from benchmarks.pairs.engine import Ask, answered
from benchmarks.pairs.recipes import Recipe

HEATS = (0.0, 0.7, 1.0)
ANSWER_RUN = 10
BATCH = {"cuda": 512, "cpu": 8}


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


def write(pair: Path, recipe: Recipe, device: str, limit: float) -> store.Sequences:
    """Writes PAIR/text.npz, once. Answers that hold a run of evaluation's words are left out of it."""
    path = pair / "text.npz"
    if path.is_file():
        return store.load(path)
    learn, evaluation, tokenizer = prompts(pair, recipe)
    ids = ids_of(tokenizer, recipe, learn)
    groups = [ids if heat == 0 else ids * recipe.samples for heat in HEATS]
    ask = Ask("ar", str(pair), device, groups, list(HEATS), recipe.answer, BATCH[device], recipe.max_model_len)
    answer = answered(ask, pair / "engines", limit)
    rows, lengths, heats = [], [], []
    for group, written, heat in zip(groups, answer.tokens, HEATS, strict=True):
        clean = without(tokenizer.batch_decode(written), [prompt.text for prompt in evaluation])
        for index in clean:
            rows.append(group[index] + written[index])
            lengths.append(len(group[index]))
            heats.append(heat)
        print(f"text at T={heat}: {len(written)} answers, {len(written) - len(clean)} left out", flush=True)
    order = list(range(len(rows)))
    random.Random(4).shuffle(order)
    text = store.Sequences(tuple(rows), tuple(lengths), tuple(heats)).chosen(order)
    text.save(path)
    return text


def without(answers: Sequence[str], held: Sequence[str]) -> list[int]:
    """Which answers hold no run of ANSWER_RUN words of any held-out text."""
    wanted: set[tuple[str, ...]] = set().union(*(texts.runs(text, ANSWER_RUN) for text in held))
    return [i for i, answer in enumerate(answers) if not wanted & texts.runs(answer, ANSWER_RUN)]
