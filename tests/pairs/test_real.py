"""The real pairs' parts (benchmarks/pairs): what can be said of them without a trained pair, and the whole path at tiny sizes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from benchmarks.pairs import (
    acceptance,
    curve,
    dflash,
    evaluate,
    library,
    pack,
    plain_llama,
    policies,
    run,
    smollm2,
    store,
    texts,
    train_drafter,
    training,
    write_text,
)
from benchmarks.pairs.recipes import RECIPES, SMOKE
from benchmarks.pairs.trace import RANKS, Trace, hit_rates
from ddtree_ext.core.tree import grow
from tests.pairs import configs
from tests.pairs import drafter as oracle

WIDTH = 15
REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def small() -> dict[str, object]:
    return configs.drafter("dense", 16)


def test_the_drafter_computes_what_the_tiny_pairs_drafter_computes(small):
    torch.manual_seed(0)
    reference = oracle.Drafter(small)
    for weight in reference.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    mine = dflash.Drafter(small)
    mine.load_state_dict(reference.state_dict())
    hidden = small["hidden_size"]
    inputs = (
        torch.randn(2, 40, 3 * hidden),
        torch.tensor([[5, 20, 39], [1, 7, 30]]),
        torch.randn(2, 3, hidden),
        torch.randn(hidden),
    )
    assert torch.allclose(mine(*inputs), reference(*inputs), atol=2e-5)


def test_a_saved_drafter_is_the_drafter_rounded(small, tmp_path):
    torch.manual_seed(1)
    drafter = dflash.Drafter(small)
    dflash.save(drafter, tmp_path)
    back = dflash.load(tmp_path)
    assert back.config == small
    for name, weight in drafter.state_dict().items():
        assert torch.equal(back.state_dict()[name], weight.bfloat16().float())


def test_taps_of_the_released_drafters():
    assert dflash.taps(64, 5) == [1, 16, 31, 46, 61]
    assert dflash.taps(4, 2) == [1, 2]
    with pytest.raises(ValueError, match="do not fit"):
        dflash.taps(4, 3)


def test_the_loss_counts_early_slots_most_and_dead_ones_not():
    logits, wanted = torch.zeros(2, WIDTH, 7), torch.zeros(2, WIDTH, dtype=torch.long)
    live = torch.ones(2, WIDTH, dtype=torch.bool)
    logits[0, 0, 1] = 9.0  # wrong in slot 1
    early = dflash.loss(logits, wanted, live)
    logits[0, 0, 1], logits[0, WIDTH - 1, 1] = 0.0, 9.0
    late = dflash.loss(logits, wanted, live)
    live[0, WIDTH - 1] = False
    assert early > late > dflash.loss(logits, wanted, live)
    assert dflash.loss(logits, wanted, live).item() == pytest.approx(np.log(7), rel=1e-5)


def random_trace(rng: np.random.Generator, blocks: int = 1) -> Trace:
    logits = rng.normal(0, 2.5, (blocks, WIDTH, 200))
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ids = np.argsort(-logprobs, axis=-1)[..., :RANKS]
    ranks = rng.choice([0, 0, 0, 1, 1, 2, 3, 5, RANKS], size=(blocks, WIDTH))
    best = np.take_along_axis(logprobs, ids, -1).astype(np.float32)
    return Trace(ids, best, ranks, np.zeros((blocks, WIDTH), np.float32), np.zeros(blocks + 1, np.float32))


@pytest.mark.parametrize("budget", [7, 15, 31, 63])
def test_a_simulated_tree_accepts_what_the_reference_tree_accepts(budget):
    rng = np.random.default_rng(budget)
    for _ in range(10):
        trace = random_trace(rng)
        tree = grow(trace.logprobs[0], trace.ids[0], budget)
        said = [
            int(trace.ids[0, depth, trace.ranks[0, depth]]) if depth < WIDTH and trace.ranks[0, depth] < RANKS else -5
            for depth in tree.depths
        ]
        assert policies.accepted(policies.plain(), trace, 0, budget) == len(tree.walk(said))


def test_a_budget_of_the_width_is_the_chain_and_accepts_the_run_of_first_ranks():
    trace = random_trace(np.random.default_rng(3), blocks=50)
    for block in range(50):
        run = int((trace.ranks[block] == 0).cumprod().sum())
        assert policies.accepted(policies.plain(), trace, block, WIDTH) == run


def test_hit_rates_are_conditional_on_the_way_there():
    ranks = np.full((4, WIDTH), RANKS)
    ranks[:, 0] = [0, 0, 1, RANKS]  # two on the spine, one beside it, one nowhere
    ranks[:, 1] = [0, 2, 0, 0]
    trace = random_trace(np.random.default_rng(0), blocks=4)
    rates = hit_rates([Trace(trace.ids, trace.logprobs, ranks, trace.entropy, trace.gaps)])
    assert rates["blocks"][:3] == [4, 2, 1]
    assert rates["spine"][0][:2] == [0.5, 0.25]
    assert rates["spine"][1][:3] == [0.5, 0.0, 0.5]
    assert rates["after_sibling"][0] is None
    assert rates["after_sibling"][1] == 1.0


def test_acceptance_leaves_out_prefill_and_the_cut_step():
    counted = acceptance.counts([[1, 4, 2, 9], [1, 3, 1], [1]])
    assert counted.tolist() == [[6, 2], [3, 1], [0, 0]]
    interval = acceptance.acceptance(counted)
    assert interval.value == 3.0
    assert interval.low <= 3.0 <= interval.high
    assert acceptance.ratio(counted[:2], counted[:2]).rounded() == [1.0, 1.0, 1.0]
    assert acceptance.by_depth([[1, 4, 2, 9]], 4) == [1.0, 0.5, 0.5, 0.0]


def test_agreement_says_where_outputs_part():
    assert acceptance.agreement([[1, 2, 3], [4, 5], [6]], [[1, 2, 3], [4, 6], [6, 7]]) == (1, [(1, 1), (2, 1)])


def test_evaluation_prompts_share_no_run_of_words_with_training():
    held, learn = texts.evaluation_prompts(), texts.training_prompts()
    assert len(held) == len(set(held)) == 160
    texts.refuse_shared([prompt.text for prompt in held], [prompt.text for prompt in learn])


def test_a_shared_run_of_words_is_refused_whatever_its_numbers_and_case():
    with pytest.raises(SystemExit, match="shares text with training"):
        texts.refuse_shared(["Calculate 12 times 3, then subtract 4."], ["please CALCULATE 9 times 8 then subtract 7"])


def test_answers_that_repeat_an_evaluation_prompt_are_left_out():
    held = "one two three four five six seven eight nine ten eleven"
    answers = ["something else", f"and {held.upper()}, it said", held[:30]]
    assert write_text.without(answers, [held]) == [0, 2]


def test_held_out_library_prompts_share_nothing_with_training(tmp_path):
    for i in range(60):
        body = "\n".join(f"    result_{i}_{j} = compute_{i}(value, {j})  # step of module {i}" for j in range(40))
        (tmp_path / f"module{i}.py").write_text(f"def work_{i}(value):\n{body}\n    return result_{i}_1\n")
    found = library.read(library.files(tmp_path))
    assert found.held["code"]
    assert len(found.learn["code"]) + len(found.held["code"]) == 60
    assert not set(found.learn["code"]) & set(found.held["code"])


def test_dequantisation_of_a_q4_1_and_a_q8_0_block():
    quants = np.arange(16, dtype=np.uint8)
    block = np.concatenate([np.array([0.5, -2.0], np.float16).view(np.uint8), quants | (15 - quants) << 4])
    want = np.concatenate([quants, 15 - quants]) * 0.5 - 2.0
    assert smollm2.dequantised(block, "Q4_1", 32)[0].tolist() == want.tolist()
    ints = np.arange(-16, 16, dtype=np.int8)
    block = np.concatenate([np.array([0.25], np.float16).view(np.uint8), ints.view(np.uint8)])
    assert smollm2.dequantised(block, "Q8_0", 32)[0].tolist() == (ints * 0.25).tolist()


def test_rows_of_q_and_k_go_from_pairs_to_halves():
    rows = np.array([[0.0], [2.0], [1.0], [3.0]], np.float32)  # by pairs: (0, 2), (1, 3)
    assert smollm2.unpermuted(rows, 1)[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_the_written_out_tokenizer_merges_by_rank_and_cuts_off_digits():
    letters = sorted(set(plain_llama.byte_letters().values()))
    assert len(letters) == 256
    vocabulary = [*letters, "ab", "abc", "Ġa", "<|x|>"]
    made = plain_llama.Tokenizer(vocabulary, ["a b", "ab c", "Ġ a"], ["<|x|>"])
    assert [vocabulary[i] for i in made.encode("abc a12<|x|>b")] == ["abc", "Ġa", "1", "2", "<|x|>", "b"]


def test_the_converted_tokenizer_cuts_off_digits_as_the_written_out_one_does():
    vocabulary, merges = [*sorted(set(plain_llama.byte_letters().values())), "ĠĠ"], [("Ġ", "Ġ")]
    backend = Tokenizer(BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=merges))
    converted = PreTrainedTokenizerFast(tokenizer_object=backend)
    smollm2.cut_off_digits(converted)
    text = "a,  12 3\t4  b"
    written_out = plain_llama.Tokenizer(vocabulary, ["Ġ Ġ"], ["<|x|>"]).encode(text)
    assert converted(text, add_special_tokens=False)["input_ids"] == written_out
    assert vocabulary.index("ĠĠ") in written_out


def test_the_written_out_model_goes_on_from_its_cache_as_if_given_all_at_once():
    rng, hidden, ffn = np.random.default_rng(0), 8, 12
    shapes = {"attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8), "attn_output": (8, 8)}
    shapes |= {"ffn_gate": (ffn, hidden), "ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn)}
    tensors = {f"blk.{i}.{name}.weight": rng.normal(size=shape) for i in range(2) for name, shape in shapes.items()}
    tensors |= {f"blk.{i}.{name}.weight": np.ones(hidden) for i in range(2) for name in ("attn_norm", "ffn_norm")}
    tensors |= {"token_embd.weight": rng.normal(size=(20, hidden)), "output_norm.weight": np.ones(hidden)}
    sizes = {"layers": 2, "heads": 2, "kv_heads": 1, "base": 1e4, "eps": 1e-5}
    at_once = plain_llama.Llama(tensors, sizes).step([3, 1, 4, 1, 5])
    model = plain_llama.Llama(tensors, sizes)
    model.step([3, 1])
    model.step([4])
    assert np.allclose(model.step([1, 5]), at_once, atol=1e-5)


def test_sequences_come_back_from_disk(tmp_path):
    held = store.Sequences(([1, 2, 3], [4], [5, 6]), (1, 1, 1), (0.0, 0.7, 1.0))
    held.save(tmp_path / "text.npz")
    assert store.load(tmp_path / "text.npz") == held
    assert held.tokens == 3


def test_anchors_lie_in_the_answer_and_leave_a_token_to_predict():
    prompts, lengths = torch.tensor([3, 10]), torch.tensor([20, 12])
    anchors = train_drafter.anchors_of(prompts, lengths, 200, torch.Generator().manual_seed(0))
    assert anchors[0].min() == 3
    assert anchors[0].max() == 18
    assert anchors[1].tolist() == [10] * 200


def test_sequences_whose_answer_lies_past_the_cut_are_not_trained_on():
    text = store.Sequences(tuple([1] * 9 for _ in range(80)), tuple([8, 3] * 40), (0.0,) * 80)
    learn, held = train_drafter.split(text, length=5)
    assert len(learn.rows) + len(held.rows) == 40
    assert held.rows
    assert {*learn.prompts, *held.prompts} == {3}


def test_a_training_in_pieces_goes_on_where_it_stopped(tmp_path, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(training.time, "monotonic", lambda: next(ticks) / 100)
    torch.manual_seed(0)
    wanted = torch.randn(4)

    def piece(seconds: float) -> tuple[training.Run, torch.nn.Linear]:
        model = torch.nn.Linear(4, 1)
        run = training.train(
            model, lambda step: (model.weight - wanted).square().sum(), dict, training.Clock(0.4, seconds),
            tmp_path / "t.pt", rate=0.05, decay=0.0, look_every=0.05, name="test",
        )  # fmt: skip
        return run, model

    first, _ = piece(0.15)
    assert 0.15 <= first.spent < 0.4
    second, model = piece(9.0)
    assert second.step > first.step
    assert second.spent >= 0.4
    assert second.points[: len(first.points)] == first.points
    assert (model.weight - wanted).square().sum() < first.points[0]["loss"]


def test_the_weights_that_did_best_on_held_out_text_outlive_worse_ones_and_the_process(tmp_path):
    model = torch.nn.Linear(2, 1)
    good = {name: weight.clone() for name, weight in model.state_dict().items()}
    training.Best(tmp_path / "best.pt", model).offer(2.0)
    torch.nn.init.zeros_(model.weight)
    again = training.Best(tmp_path / "best.pt", model)  # of another process
    again.offer(2.5)
    assert again.held == 2.0
    again.restore()
    assert torch.equal(model.weight, good["weight"])
    torch.nn.init.ones_(model.weight)
    again.offer(1.5)
    torch.nn.init.zeros_(model.weight)
    again.restore()
    assert model.weight.sum() == 2


def test_a_pair_travels_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(pack, "PIECE", 4096)
    (tmp_path / "pair" / "drafter").mkdir(parents=True)
    data = np.random.default_rng(0).bytes(9000)
    (tmp_path / "pair" / "drafter" / "model.safetensors").write_bytes(data)
    pieces = pack.pack(tmp_path / "pair", ("drafter",), tmp_path / "out")
    assert len(pieces) > 2
    assert max(piece.stat().st_size for piece in pieces) <= 4096
    pack.unpack(tmp_path / "out", tmp_path / "back")
    assert (tmp_path / "back" / "drafter" / "model.safetensors").read_bytes() == data


def test_a_curve_is_an_image():
    points = [{"step": 1.0, "loss": 5.0}, {"step": 9.0, "loss": 2.0, "held": 2.5}]
    tree = ET.fromstring(curve.svg(points, ("loss", "held"), "a title"))
    assert sum(element.tag.endswith("path") for element in tree.iter()) >= 7


def driver(tmp_path: Path, *, minutes: float, stop_after: float) -> run.Driver:
    recipe = RECIPES["hybrid"]
    return run.Driver("hybrid", recipe, tmp_path / "pair", tmp_path / "out", "cuda", minutes, stop_after, False, None)


def test_a_run_in_one_go_keeps_time_for_evaluation(tmp_path):
    whole = driver(tmp_path, minutes=20, stop_after=20)
    assert whole.seconds("drafter", 0.3) == pytest.approx(0.3 * 1200, abs=1)
    whole.began -= 460
    assert whole.seconds("drafter", 0.3) == pytest.approx(1200 - 460 - run.EVALUATION_SHARE * 1200, abs=1)
    whole.began -= 400
    assert whole.seconds("drafter", 0.3) == pytest.approx(0.4 * 360)  # a drafter is worth some of evaluation's time


def test_a_piece_leaves_to_the_next_what_it_has_no_room_for(tmp_path):
    piece = driver(tmp_path, minutes=24, stop_after=9)
    piece.began -= 5 * 60
    assert piece.seconds("drafter", 0.3) == pytest.approx(0.3 * 24 * 60)
    assert not piece.text()
    assert not piece.evaluation()


def test_seconds_of_every_call_are_added_up(tmp_path):
    for _ in range(2):
        one = driver(tmp_path, minutes=24, stop_after=9)
        one.pair.mkdir(exist_ok=True)
        one.note("drafter", time.monotonic() - 100)
    seconds = json.loads((tmp_path / "out" / "training.json").read_text())["seconds"]
    assert seconds == {"drafter": pytest.approx(200, abs=5)}


def test_a_target_is_done_when_its_last_file_is_written(tmp_path, monkeypatch):
    one = driver(tmp_path, minutes=24, stop_after=9)
    (one.pair / "target").mkdir(parents=True)
    (one.pair / "target" / "model.safetensors").write_bytes(b"cut off in the mid")
    trained: list[object] = []
    monkeypatch.setattr(run, "apart", lambda train, *args: bool(trained.append(train)) or True)
    assert one.target()
    assert len(trained) == 1
    (one.pair / "target" / "source.json").write_text("{}")
    assert one.target()
    assert len(trained) == 1


def test_evaluation_without_any_arm_is_a_failure_and_with_some_is_not(tmp_path, monkeypatch):
    one = driver(tmp_path, minutes=24, stop_after=24)
    found: dict[str, dict[str, object]] = {"arms": {}, "errors": {"ar": "exit code 1"}}
    monkeypatch.setattr(evaluate, "evaluate", lambda *_: found)
    with pytest.raises(SystemExit, match="evaluation failed"):
        one.evaluation()
    found["arms"] = {"chain:7": {}}
    assert one.evaluation()


def test_shares_leave_evaluation_its_own():
    assert set(SMOKE) == set(RECIPES)
    for recipe in RECIPES.values():
        assert recipe.target_share + recipe.drafter_share + run.EVALUATION_SHARE < 0.96


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_the_whole_path_at_tiny_sizes(tmp_path):
    command = [sys.executable, "-m", "benchmarks.pairs.run", "--pair", "hybrid", "--smoke"]
    command += ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=3500, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["errors"] == {}
    for arm in ("chain:3", "chain:15", "tree:7", "tree:31"):
        assert results["arms"][arm]["0.0"]["all"]["acceptance"][0] >= 1.0
    assert results["arms"]["tree:31"]["0.0"]["all"]["trees"]["trees"] > 0
    assert max(path.stat().st_size for path in (tmp_path / "out").iterdir()) <= 16 << 20
