"""Engines of an evaluation: what each is asked, what is kept of one that fails, is cut or is asked again. No vLLM in here but where
a test says `engine`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.pairs import engine, evaluate, rehearse, store, tables, write_text
from benchmarks.pairs.engine import Answer, Ask, Pass, Turn, answer_of, answered, environment, options
from benchmarks.pairs.recipes import RECIPES, SMOKE
from tests.pairs import configs, evaluations

REPO = Path(__file__).resolve().parents[2]
PAIRS = Path(os.environ.get("PAIRS", REPO / "build" / "pairs"))


def ask(arm: str, *turns: Turn, device: str = "cuda", **more: Any) -> Ask:
    return Ask(arm, "pair", device, [[[1]] * 5, [[2]] * 3], [0.0, 1.0], 8, 4, list(turns), **more)


def test_stock_arms_run_without_the_extension():
    assert environment(ask("chain:7"))["VLLM_PLUGINS"] == "none"
    assert "VLLM_PLUGINS" not in environment(ask("tree:31"))
    assert "worker_cls" not in options(ask("chain:7"))
    assert options(ask("tree:63"))["max_num_batched_tokens"] >= 4 * 127


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts of each of two sets, without a tokenizer."""
    chosen = [SimpleNamespace(kind=kind) for kind in ("code", "code", "maths", "maths")]
    monkeypatch.setattr(write_text, "prompts", lambda pair, recipe: ([], chosen, None))
    monkeypatch.setattr(write_text, "ids_of", lambda tokenizer, recipe, held: [[i] for i in range(len(held))])


@pytest.mark.usefixtures("prompts")
def test_on_a_gpu_seven_engines_and_one_more_answer_all_arms(tmp_path):
    made = evaluate.plan(tmp_path, RECIPES["smollm2"], "cuda")
    by_engine = {one.arm: [turn.arm for turn in one.turns] for one in made.engines}
    assert by_engine == {
        "ar": ["ar", "ar again"],
        "tree:63": ["tree:63", "tree:15"],
        "tree:31": ["tree:31", "tree:7"],
        **{f"chain:{k}": [f"chain:{k}"] for k in (15, 11, 7, 5, 3)},
    }
    assert len(by_engine) == evaluate.AT_A_TIME["cuda"]
    assert [turn.nodes for turn in made.engines[1].turns] == [63, 15]


@pytest.mark.usefixtures("prompts")
def test_the_control_answers_greedy_prompts_in_another_batch_size(tmp_path):
    made = evaluate.plan(tmp_path, RECIPES["smollm2"], "cuda")
    plain, control = made.engines[0].turns
    assert [made.groups[i][0] for i in control.groups] == [0.0, 0.0]
    assert plain.groups == list(range(6))
    assert control.batch == plain.batch // 4


@pytest.mark.usefixtures("prompts")
def test_an_engine_of_small_trees_alone_is_as_wide_as_the_drafter(tmp_path):
    made = evaluate.plan(tmp_path, replace(SMOKE["smollm2"], trees=(7,)), "cpu")
    assert [one.arm for one in made.engines if one.kind == "tree"] == ["tree:15"]
    assert made.arms == ["ar", "ar again", "tree:7", "chain:15", "chain:3"]


@pytest.mark.usefixtures("prompts")
def test_another_drafter_is_another_question(tmp_path):
    (tmp_path / "drafter").mkdir()
    (tmp_path / "drafter" / "trained.json").write_text('{"steps": 1}')
    one = evaluate.plan(tmp_path, RECIPES["smollm2"], "cuda").engines[0]
    (tmp_path / "drafter" / "trained.json").write_text('{"steps": 2}')
    assert evaluate.plan(tmp_path, RECIPES["smollm2"], "cuda").engines[0].stamp != one.stamp


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A pair's folder with a target's config and text, and no weights."""
    pair = tmp_path / "pair"
    (pair / "target").mkdir(parents=True)
    (pair / "target" / "config.json").write_text(json.dumps(configs.target("dense")))
    store.Sequences(([1, 2, 3], [4, 5]), (2, 1), (0.0, 1.0)).save(pair / "text.npz")
    return pair


def rehearsed(monkeypatch: pytest.MonkeyPatch, pair: Path, runs: Callable[[Ask], bool]) -> dict[str, str]:
    def answered(ask: Ask, folder: Path, limit: float) -> tuple[dict[str, Answer], dict[str, str]]:
        assert (Path(ask.pair) / "drafter" / "model.safetensors").is_file()
        return ({ask.arm: Answer()}, {}) if runs(ask) else ({}, {ask.arm: "exit code 1: no such kernel"})

    monkeypatch.setattr(rehearse, "answered", answered)
    recipe = replace(RECIPES["smollm2"], drafter=SMOKE["smollm2"].drafter)
    return rehearse.rehearse(pair, recipe, "cuda", 60)


@pytest.mark.usefixtures("prompts")
def test_what_ran_with_cuda_graphs_only_is_asked_so(monkeypatch, tiny, capsys):
    assert all(one.eager for one in evaluate.plan(tiny, RECIPES["smollm2"], "cuda").engines)
    found = rehearsed(monkeypatch, tiny, lambda ask: ask.kind == "chain" or not ask.eager)
    assert found == {"tree": "graphs", "chain": "eager"}
    assert "tree:63 runs, graphs, after it failed: exit code 1: no such kernel" in capsys.readouterr().out
    made = evaluate.plan(tiny, RECIPES["smollm2"], "cuda")
    assert {one.kind: one.eager for one in made.engines} == {"ar": True, "tree": False, "chain": True}
    assert rehearse.aside(tiny, RECIPES["smollm2"], "cuda", 60) is None


def test_what_does_not_run_at_all_is_said_at_once(monkeypatch, tiny, capsys):
    assert rehearsed(monkeypatch, tiny, lambda ask: ask.kind == "chain")["tree"] == "failed"
    assert "rehearsal: tree:63 FAILS" in capsys.readouterr().out
    assert rehearse.eager(tiny, "tree:63")  # evaluation tries both ways again


def evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: dict[str, float]) -> dict[str, Any]:
    made = evaluations.plan({"tree:31": 0, "chain:7": 0, "chain:15": 0}, 6)
    monkeypatch.setattr(evaluate, "plan", lambda *_: made)
    monkeypatch.setattr(evaluate, "answered", evaluations.stand_in(lengths, 6))
    monkeypatch.setattr(evaluate, "offline", lambda *_: ({}, {}))
    return evaluate.evaluate(tmp_path / "pair", RECIPES["smollm2"], "cpu", tmp_path / "out", 100.0)


def test_an_arm_that_fails_loses_nothing_of_the_others(tmp_path, monkeypatch):
    found = evaluated(tmp_path, monkeypatch, {"chain:7": 3.0, "tree:31": 4.0})
    assert list(found["arms"]) == ["ar", "tree:31", "chain:7"]
    assert found["errors"] == {"chain:15": "exit code 1: a made-up failure"}
    assert found["ratios"]["0.0"]["all"]["best_chain"] == "chain:7"
    assert 1.1 < found["ratios"]["0.0"]["all"]["tree:31"][0] < 1.6
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == found
    assert "tree:31" in tables.all_tables(found)


def test_evaluation_without_any_chain_still_says_what_trees_accept(tmp_path, monkeypatch):
    found = evaluated(tmp_path, monkeypatch, {"tree:31": 4.0})
    assert found["ratios"] == {}
    assert found["arms"]["tree:31"]["1.0"]["all"]["acceptance"][0] == pytest.approx(4.0, abs=0.3)


def test_an_offline_pass_that_fails_leaves_the_engines_numbers(tmp_path, monkeypatch):
    made = evaluations.plan({"chain:7": 0}, 6)
    monkeypatch.setattr(evaluate, "plan", lambda *_: made)
    monkeypatch.setattr(evaluate, "answered", evaluations.stand_in({"chain:7": 3.0}, 6))
    found = evaluate.evaluate(tmp_path / "pair", RECIPES["smollm2"], "cpu", tmp_path / "out", 100.0)
    assert set(found["errors"]) == {"offline"}  # there is no such pair to load
    assert set(found["arms"]) == {"ar", "chain:7"}


def test_engines_that_have_no_time_left_are_not_begun():
    made = evaluations.plan({"chain:7": 0}, 2)
    found = list(evaluate.answers(made, "cpu", Path("/nowhere"), time.monotonic() + 1))
    assert [errors for _, errors in found] == [{"ar": "left out: no time"}, {"chain:7": "left out: no time"}]


def test_a_failed_engine_is_asked_once_more_with_cuda_graphs(monkeypatch, tmp_path):
    asked: list[bool] = []

    def answered(ask: Ask, folder: Path, limit: float) -> tuple[dict[str, Answer], dict[str, str]]:
        asked.append(ask.eager)
        return ({}, {"chain:7": "exit code 1"}) if ask.eager else ({"chain:7": Answer()}, {})

    monkeypatch.setattr(evaluate, "answered", answered)
    made = replace(evaluations.plan({"chain:7": 0}, 2), engines=evaluations.plan({"chain:7": 0}, 2).engines[1:])
    ((found, errors),) = evaluate.answers(made, "cuda", tmp_path, time.monotonic() + 1000)
    assert (set(found), errors, asked) == ({"chain:7"}, {}, [True, False])


class Engine:
    """A stand-in for vLLM's engine: every request gets two tokens a step, its own number, until it has what it asked for."""

    def __init__(self) -> None:
        self.live: dict[str, Any] = {}
        self.most = 0
        self.asked: list[tuple[str, Any]] = []
        self.aborted: list[str] = []

    def add_request(self, name: str, prompt: dict[str, Any], sampling: Any) -> None:
        self.live[name] = SimpleNamespace(tokens=[], most=sampling.max_tokens)
        self.asked.append((name, sampling))
        self.most = max(self.most, len(self.live))

    def step(self) -> list[Any]:
        outputs = []
        for name, request in list(self.live.items()):
            request.tokens = [*request.tokens, 7, 7][: request.most]
            finished = len(request.tokens) == request.most
            outputs.append(
                SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=request.tokens)], finished=finished)
            )
            if finished:
                del self.live[name]
        return outputs

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names


def stand_in_llm() -> Any:
    return SimpleNamespace(llm_engine=Engine())


NEVER = float("inf")


def test_a_turn_runs_so_many_requests_at_a_time_and_notes_every_step():
    llm = stand_in_llm()
    found = answer_of(llm, ask("ar"), Turn("ar", 2, [0, 1]), NEVER)
    assert llm.llm_engine.most == 2
    assert [len(group) for group in found.tokens] == [5, 3]
    assert found.gains[0][4] == [2, 2, 2, 2]
    assert all(len(tokens) == 8 for group in found.tokens for tokens in group)


def test_groups_that_a_turn_does_not_have_are_empty():
    found = answer_of(stand_in_llm(), ask("ar"), Turn("ar", 2, [1]), NEVER)
    assert found.tokens[0] == []
    assert len(found.tokens[1]) == 3


def test_requests_have_their_temperature_a_seed_of_their_own_and_their_trees_size():
    llm = stand_in_llm()
    answer_of(llm, ask("tree:63"), Turn("tree:15", 9, [0, 1], nodes=15), NEVER)
    by_name = dict(llm.llm_engine.asked)
    assert [by_name[f"tree:15/{group}/0"].temperature for group in (0, 1)] == [0.0, 1.0]
    assert len({sampling.seed for sampling in by_name.values()}) == 8
    assert {sampling.extra_args["ddtree"] for sampling in by_name.values()} == {15}


def test_mixed_groups_are_cut_where_they_are_when_time_is_up():
    llm = stand_in_llm()
    one = Pass(llm, ask("ar", together=True), Turn("text", 4, [0, 1]), [0, 1], time.monotonic() - 1)
    assert not one.run()
    assert one.tokens == {0: [[]] * 5, 1: [[]] * 3}
    mixed = Pass(llm, ask("ar", together=True), Turn("text", 4, [0, 1]), [0, 1], NEVER)
    assert sorted(mixed.waiting) != mixed.waiting[::-1]
    assert mixed.run()


ANSWERS = """
import json, sys, time
ask = json.load(open(sys.argv[1]))
held = json.load(open(sys.argv[2])) if __import__("os").path.exists(sys.argv[2]) else {}
for turn in ask["turns"]:
    if turn["arm"] in held: continue
    if turn["arm"] == "hangs": time.sleep(60)
    if turn["arm"] == "fails": sys.exit("what went wrong")
    held[turn["arm"]] = {"seconds": len(held)}
    json.dump(held, open(sys.argv[2], "w"))
"""


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """In place of an engine: a process that answers each turn with how many were answered before; the commands that were begun."""
    begun: list[list[str]] = []
    run = engine._run

    def instead(command: list[str], environment: dict[str, str], said: Path, limit: float) -> str:
        begun.append(command)
        return run([sys.executable, "-c", ANSWERS, *command[3:5]], environment, said, limit)

    monkeypatch.setattr(engine, "_run", instead)
    return begun


def turns(*arms: str) -> list[Turn]:
    return [Turn(arm, 1, [0]) for arm in arms]


def test_turns_before_one_that_fails_are_kept_and_the_engines_last_words_are_said(process, tmp_path):
    found, errors = answered(ask("ar", *turns("a", "fails", "b")), tmp_path, 60)
    assert list(found) == ["a"]
    assert list(errors) == ["fails", "b"]
    assert errors["b"].startswith("exit code 1: what went wrong")


def test_turns_before_one_that_takes_too_long_are_kept(process, tmp_path):
    began = time.monotonic()
    found, errors = answered(ask("ar", *turns("a", "hangs")), tmp_path, 4)
    assert list(found) == ["a"]
    assert errors["hangs"].startswith("no end after 4 s")
    assert time.monotonic() - began < 30


def test_what_was_answered_is_not_asked_again(process, tmp_path):
    answered(ask("ar", *turns("a", "b")), tmp_path, 60)
    found, errors = answered(ask("ar", *turns("a", "b"), seconds=9.0), tmp_path, 60)
    assert (list(found), errors, len(process)) == (["a", "b"], {}, 1)


def test_another_question_is_asked_afresh(process, tmp_path):
    answered(ask("ar", *turns("a"), stamp="one drafter"), tmp_path, 60)
    answered(ask("ar", *turns("a"), stamp="another"), tmp_path, 60)
    assert len(process) == 2


def test_an_engine_that_is_given_up_takes_its_children_with_it(tmp_path):
    mark = tmp_path / "mark"
    child = f"import time; time.sleep(3); open({str(mark)!r}, 'w')"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    assert engine._run([sys.executable, "-c", parent], dict(os.environ), tmp_path / "log", 1.5).startswith("no end")
    time.sleep(3)
    assert not mark.exists()


def test_an_engine_ends_with_the_process_that_began_it():
    wait = """
import os, threading, time
from benchmarks.pairs.engine import end_with
threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
print(os.getpid(), flush=True)
time.sleep(60)
"""
    begin = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {wait!r}], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline(), flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", begin], cwd=REPO, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    orphan = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{orphan}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.2)
    assert time.monotonic() < deadline


def test_an_engine_whose_beginner_was_gone_before_it_looked_ends_too():
    wait = "import sys; from benchmarks.pairs.engine import end_with; end_with(int(sys.argv[1]))"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert (
        subprocess.run([sys.executable, "-c", wait, str(gone.pid)], cwd=REPO, timeout=60, check=False).returncode == 1
    )


def wrote(
    monkeypatch: pytest.MonkeyPatch, found: list[tuple[dict[str, Answer], dict[str, str]]], tmp_path: Path
) -> Any:
    """write_text.write with these engines' answers in place of engines."""
    learn = [SimpleNamespace(text=f"prompt {i}") for i in range(4)]
    words = SimpleNamespace(batch_decode=lambda rows: ["word " * len(row) for row in rows])
    monkeypatch.setattr(write_text, "prompts", lambda pair, recipe: (learn, [SimpleNamespace(text="held out")], words))
    monkeypatch.setattr(write_text, "ids_of", lambda tokenizer, recipe, held: [[i] for i in range(len(held))])
    monkeypatch.setitem(write_text.WRITERS, "cpu", 2)
    monkeypatch.setattr(write_text, "answered", lambda one, folder, limit: found[int(folder.name[-1])])
    return write_text.write(tmp_path, replace(RECIPES["smollm2"], samples=1), "cpu", 5.0, 9.0)


def test_what_one_engine_wrote_is_text_although_the_other_failed_and_cut_answers_are_too(monkeypatch, tmp_path):
    answer = Answer(tokens=[[[8, 8, 8], [9]], [[], [7, 7]], [[], []]])
    text = wrote(monkeypatch, [({"text": answer}, {}), ({}, {"text": "exit code 1"})], tmp_path)
    assert sorted(zip(text.rows, text.heats, strict=True)) == [([0, 8, 8, 8], 0.0), ([2, 7, 7], 0.7), ([2, 9], 0.0)]
    assert set(text.prompts) == {1}


def test_no_text_at_all_is_an_error(monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="no engine wrote any text"):
        wrote(monkeypatch, [({}, {"text": "exit code 1"})] * 2, tmp_path)
    assert not (tmp_path / "text.npz").exists()


@pytest.mark.engine
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_requests_smaller_tree_is_the_smaller_engines_tree(tmp_path):
    prompts = [[3 + (7 * i + j) % 40 for j in range(6 + i)] for i in range(3)]
    made = Ask("tree:31", str(PAIRS / "hybrid128"), "cpu", [prompts, prompts], [0.0, 1.0], 24, 4, [], 128)
    large, errors = answered(
        replace(made, turns=[Turn("tree:31", 4, [0, 1], 31), Turn("tree:20", 4, [0, 1], 20)]), tmp_path / "large", 900
    )
    assert errors == {}
    small, errors = answered(replace(made, arm="tree:20", turns=[Turn("tree:20", 4, [0, 1])]), tmp_path / "small", 900)
    assert errors == {}
    assert large["tree:20"].tokens == small["tree:20"].tokens == large["tree:31"].tokens
    assert large["tree:20"].gains == small["tree:20"].gains
    assert large["tree:20"].trees[0]["nodes"] == small["tree:20"].trees[0]["nodes"] < large["tree:31"].trees[0]["nodes"]
    assert asdict(large["tree:20"])["versions"] == asdict(small["tree:20"])["versions"]
