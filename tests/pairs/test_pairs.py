"""What a made pair must be for the tests of the engine to mean something: judges build/pairs, or the folder PAIRS."""

from __future__ import annotations

import json
import os
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the engine's Python runs these")

from tests.pairs import configs, measure, target, tokenizer
from tests.pairs.grammar import WORDS, spell
from tests.pairs.greedy import decode
from tests.pairs.prompts import DEMO_EXPECT, DEMO_PROMPT, NEW_TOKENS, PROMPTS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
KINDS = configs.KINDS
PAIRS = Path(os.environ.get("PAIRS", Path(__file__).parents[2] / "build" / "pairs"))


@cache
def report(kind: str) -> measure.Report:
    return measure.measure(PAIRS / kind)


def header(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    tensors: dict[str, Any] = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    return tensors


def test_the_prompts_are_fifty_different_texts_of_unequal_length() -> None:
    lengths = [len(tokenizer.build()(prompt).input_ids) for prompt in PROMPTS]
    assert len(set(PROMPTS)) == len(PROMPTS) == 50
    assert len(set(lengths)) >= 40
    assert min(lengths) < 10
    assert max(lengths) > 70


def test_a_word_of_the_grammar_is_one_token_and_other_text_survives() -> None:
    words = tokenizer.build()
    assert words(spell([*WORDS, "."])).input_ids == tokenizer.word_ids([*WORDS, "."])
    assert words.decode(words("zwölf 12 {}").input_ids) == " zwölf 12 {}"


@pytest.mark.parametrize("kind", KINDS)
def test_no_greedy_choice_on_the_prompts_is_a_near_tie(kind: str) -> None:
    gaps = report(kind).gaps
    assert gaps.shape == (len(PROMPTS), NEW_TOKENS)
    assert float(gaps.min()) >= target.NEAR_TIE


@pytest.mark.parametrize("kind", KINDS)
def test_the_drafter_is_often_wrong_at_rank_0_and_right_just_below(kind: str) -> None:
    seen = report(kind)
    assert 2.5 <= seen.acceptance <= 5.5
    assert seen.hits_below_top() >= 0.4


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_knows_the_demonstrations_answer(kind: str) -> None:
    made = decode(target.load(PAIRS / kind / "target"), (DEMO_PROMPT,), 24)
    assert DEMO_EXPECT in tokenizer.build().decode(made.outputs[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_drafters_file_is_in_the_released_format(kind: str) -> None:
    folder = PAIRS / kind / "drafter"
    tensors = header(folder / "model.safetensors")
    tensors.pop("__metadata__")
    config = json.loads((folder / "config.json").read_text())
    taps = config["dflash_config"]["target_layer_ids"]
    assert {tensor["dtype"] for tensor in tensors.values()} == {"BF16"}
    assert tensors["fc.weight"]["shape"] == [config["hidden_size"], len(taps) * config["hidden_size"]]
    assert not [name for name in tensors if "embed" in name or "lm_head" in name]
    assert len(tensors) == 11 * config["num_hidden_layers"] + 3
    assert max(taps) + 1 < config["num_target_layers"]
