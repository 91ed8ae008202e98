"""`bench compare`: what counts as worse, how often it is wrong, and how it is told."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from bench_host import LINES, cell, results
from calling import Caller

from deployer.bench.compare import Change, compare, student
from deployer.bench.comparison import lines, markdown, summary
from deployer.bench.model import BenchFile
from deployer.errors import Exit, UsageError

TPOT = {"ar": 20.0, "chain:7": 8.0, "tree:15": 6.0}


def sweep(draw: random.Random, noise: float, *, rounds: int = 3, slower: dict[str, float] | None = None) -> BenchFile:
    """Three arms at four places. `noise` is the deviation of a round's logarithm, `slower` a factor on an arm's times."""
    cells = []
    for prompts in ("code", "chat"):
        for concurrency in (1, 4):
            for arm, tpot in TPOT.items():
                for round_ in range(1, rounds + 1):
                    took = tpot * (slower or {}).get(arm, 1.0) * math.exp(draw.gauss(0, noise))
                    under = {"prompts": prompts, "concurrency": concurrency, "round": round_}
                    cells.append(cell(arm, took, seed=round_, **under))
    return results(*cells)


def test_two_sweeps_of_the_same_are_rarely_told_apart_however_noisy() -> None:
    """Sixty pairs, each with some fifty numbers: one pair in twenty may err, and errs mostly below the tolerance."""
    draw = random.Random(0)
    for noise in (0.005, 0.05):
        wrong = sum(bool(compare(sweep(draw, noise), sweep(draw, noise), tolerance=0).of("worse")) for _ in range(60))
        assert wrong <= 6, f"{wrong} of 60 at a noise of {noise}"


def test_an_arm_that_became_a_tenth_slower_is_found_and_no_other() -> None:
    draw = random.Random(1)
    for _ in range(20):
        found = compare(sweep(draw, 0.01), sweep(draw, 0.01, slower={"tree:15": 1.1}))
        slower = [change for change in found.of("worse") if change.name == "TPOT p50"]
        assert {change.arm for change in slower} == {"tree:15"}
        assert len(slower) == 4
        assert not found.of("better")


def test_the_same_tenth_is_no_finding_where_the_rounds_lie_far_apart() -> None:
    draw = random.Random(2)
    found = compare(sweep(draw, 0.2), sweep(draw, 0.2, slower={"tree:15": 1.1}))
    assert not found.of("worse")
    assert "No change beyond the noise" in summary(found)


def test_a_change_below_the_tolerance_is_none_however_certain() -> None:
    draw = random.Random(3)
    then, now = sweep(draw, 0.0001), sweep(draw, 0.0001, slower={"tree:15": 1.02})
    assert not compare(then, now).of("worse")
    assert compare(then, now, tolerance=0.01).of("worse")


def test_faster_is_better_and_not_worse() -> None:
    draw = random.Random(4)
    found = compare(sweep(draw, 0.005), sweep(draw, 0.005, slower={"chain:7": 0.8}))
    assert not found.of("worse")
    assert {change.name for change in found.of("better")} == {"tokens/s", "TPOT p50", "end to end p50"}


def test_without_a_second_round_of_anything_nothing_is_judged() -> None:
    draw = random.Random(5)
    found = compare(sweep(draw, 0.0, rounds=1), sweep(draw, 0.0, rounds=1, slower={"tree:15": 2.0}))
    timed = [change for change in found.changes if change.name != "equal answers"]
    assert {change.verdict for change in timed} == {"unknown"}
    assert not found.of("worse")


def test_one_round_now_is_judged_by_the_noise_that_was_seen_before() -> None:
    draw = random.Random(6)
    found = compare(sweep(draw, 0.005), sweep(draw, 0.005, rounds=1, slower={"tree:15": 1.5}))
    assert {change.arm for change in found.of("worse")} == {"tree:15"}


def test_answers_that_are_no_longer_plain_decodings_are_worse() -> None:
    def file(outputs: tuple[str, ...]) -> BenchFile:
        usual = {"outputs": tuple("abcdefghijklmnopqrstuvwxyz")}
        return results(
            *(cell("ar", 20.0, round=r, seen=usual) for r in (1, 2, 3)),
            *(cell("tree:15", 6.0, round=r, seen={"outputs": outputs}) for r in (1, 2, 3)),
        )

    right = tuple("abcdefghijklmnopqrstuvwxyz")
    [worse] = compare(file(right), file((*right[:13], *["?"] * 13))).of("worse")
    assert (worse.name, worse.arm, worse.now) == ("equal answers", "tree:15", 0.5)
    assert not compare(file(right), file((*right[:25], "?"))).of("worse"), "one near-tie of 26 is no finding"


def test_acceptance_that_fell_is_worse_and_sampled_rounds_have_a_noise_of_their_own() -> None:
    def file(length: float, spread: float) -> BenchFile:
        greedy = [cell("tree:15", 6.0, round=r, seen={"acceptance_length": length}) for r in (1, 2, 3)]
        warm = [
            cell("tree:15", 6.0, round=r, temperature="0.7", seen={"acceptance_length": length + spread * (r - 2)})
            for r in (1, 2, 3)
        ]
        return results(*greedy, *warm)

    assert {change.place.temperature for change in compare(file(5.0, 0.5), file(4.7, 0.5)).of("worse")} == {"0"}
    assert {change.place.temperature for change in compare(file(5.0, 0.01), file(4.7, 0.01)).of("worse")} == {
        "0",
        "0.7",
    }


def test_only_what_was_measured_under_the_same_conditions_is_compared() -> None:
    then = results(cell("ar", 20.0), cell("tree:15", 6.0), cell("chain:7", 8.0, output_tokens=32))
    now = results(
        cell("ar", 20.0), cell("tree:15", 6.0, prompts_digest="other"), cell("chain:7", 8.0, output_tokens=64)
    )
    found = compare(then, now)
    assert {change.arm for change in found.changes} == {"ar"}
    assert [line.split(",")[0] for line in found.alone] == ["chain:7", "tree:15", "chain:7", "tree:15"]
    with pytest.raises(UsageError, match="no measurement in common"):
        compare(results(cell("ar", 20.0)), results(cell("ar", 20.0, concurrency=2)))


def test_what_else_is_not_the_same_is_said() -> None:
    then = results(cell("ar", 20.0))
    subject = then.subject.model_copy(
        update={"release": "cuda-other", "versions": {"vllm": "0.32.1", "torch": "2.11.0"}}
    )
    found = compare(then, then.model_copy(update={"subject": subject}))
    assert found.differs == ("release: cuda-0123456789ab before, cuda-other now", "vllm: 0.32.0 before, 0.32.1 now")


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    # Tables of Student's distribution.
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 4, 2.776),
        (0.975, 10, 2.228),
        (0.9995, 10, 4.587),
        (0.995, 60, 2.660),
    ],
)
def test_students_quantile_is_the_tables(probability: float, freedom: int, value: float) -> None:
    assert student(probability, freedom) == pytest.approx(value, rel=0.005)


def test_markdown_has_the_sentence_first_and_folds_away_what_did_not_change() -> None:
    draw = random.Random(7)
    text = markdown(compare(sweep(draw, 0.005), sweep(draw, 0.005, slower={"tree:15": 1.2})))
    assert text.startswith("**12 of ")
    assert "### Worse\n\n| arm |" in text
    rows = [line for line in text.splitlines() if line.startswith("| tree:15 | code | 0 | 1 | TPOT p50 ")]
    assert len(rows) == 1
    assert "<details><summary>The same within the noise" in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {10}


def written(path: Path, file: BenchFile) -> Path:
    path.write_text(file.model_dump_json())
    return path


def test_the_verb_ends_with_9_when_something_got_worse_and_with_0_when_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call, draw = Caller(capsys), random.Random(8)
    old = written(tmp_path / "old.json", sweep(draw, 0.005))
    new = written(tmp_path / "new.json", sweep(draw, 0.005, slower={"tree:15": 1.2}))
    worse = call("bench", "compare", old, new)
    assert worse.code == Exit.BENCH_REGRESSION
    assert "worse: tree:15, code, T=0, 1 at a time: TPOT p50 6.0" in worse.stdout
    assert call("bench", "compare", old, old).code == Exit.OK
    assert call("bench", "compare", old, new, "--tolerance", "0.5").code == Exit.OK
    document = call.json("bench", "compare", old, new, "--markdown")
    assert (document.verb, document.outcome) == ("bench compare", "bench-regression")
    assert "### Worse" in (document.lines or [])


def test_results_can_be_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = Caller(capsys)
    path = written(tmp_path / "old.json", results(cell("ar", 20.0), cell("tree:15", 6.0)))
    shown = call("bench", "show", path, "--html", tmp_path / "page.html")
    assert shown.code == Exit.OK
    assert "tree, budget 15" in shown.stdout
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert call.json("bench", "show", path).sweep is not None


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "cannot be read"), ("no json", "no result of a bench"), ('{"format": "other/1"}', "no result of a bench")],
)
def test_a_file_that_is_no_result_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: Any, says: str
) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    document = Caller(capsys).json("bench", "show", path)
    assert document.exit_code == Exit.USAGE
    assert document.error is not None
    assert says in document.error.what
    assert document.error.where == str(path)


def test_a_line_for_the_terminal_says_what_where_and_how_sure() -> None:
    found = compare(results(cell("ar", 20.0)), results(cell("ar", 40.0)))
    assert (
        lines(found)[0]
        == "not judged: ar, code, T=0, 1 at a time: tokens/s 50.00 before, 25.00 now: -50.0 % (no interval)"
    )
    assert isinstance(found.changes[0], Change)
    assert LINES[0].name == found.changes[0].arm
