"""The page of a bench: what it says, that its plots are the numbers, that it needs nothing else, and how it looks."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import browser
import pytest
from bench_host import LINES, cell, percentiles, results

from deployer.bench.figures import depths, figures
from deployer.bench.model import ArmLine, BenchFile
from deployer.bench.page import noise_sentence, page
from deployer.bench.series import Spread, match, noise, series
from deployer.bench.svg import Axis, Line, Point, lines, nice, number
from deployer.bench.table import CPU_REMARK
from deployer.bench.verdict import speed, verdict

ARMS = (
    LINES[0],
    ArmLine(name="mtp:2", title="MTP head, K=2", tokens=2),
    *LINES[1:],
    ArmLine(name="tree:63", title="tree, budget 63", tokens=63),
)


def sweep(*, rounds: int = 3, build: str = "cuda", host: str = "box") -> BenchFile:
    """Four arms at many places. Trees win with few requests at a time, the chain with many."""
    cells = []
    for prompts, temperature in (("code", "0"), ("chat", "0"), ("code", "own"), ("chat", "own")):
        for concurrency in (1, 2, 8):
            cost = {
                "ar": 1.0,
                "mtp:2": 1.05,
                "chain:7": 1.1,
                "tree:15": 1.0 + 0.15 * concurrency,
                "tree:63": 1 + concurrency / 2,
            }
            for arm, length in {"ar": 1.0, "mtp:2": 2.0, "chain:7": 3.5, "tree:15": 4.6, "tree:63": 4.8}.items():
                for round_ in range(1, rounds + 1):
                    tpot = 25.0 * cost[arm] / length * (1 + 0.004 * round_)
                    depth = 0 if arm == "ar" else 2 if arm == "mtp:2" else 7
                    seen = {
                        "acceptance_length": length,
                        "accepted_by_depth": tuple((1 - 1 / length) ** k for k in range(1, depth + 1)),
                        "output_tokens_per_second": concurrency * 1000 / tpot,
                        "ttft": percentiles(40.0 * concurrency),
                        "outputs": ("a", "b", "c", "d") if temperature == "0" else (),
                    }
                    under = {"prompts": prompts, "temperature": temperature, "concurrency": concurrency}
                    cells.append(cell(arm, tpot, round=round_, seen=seen, **under))
    made = results(*cells, build=build, arms=ARMS)
    return made.model_copy(update={"subject": made.subject.model_copy(update={"host": host})})


class Outline(HTMLParser):
    """Open elements, to see that each is closed, and every reference to something else."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.elements: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.references += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(text: str) -> Outline:
    made = Outline()
    made.feed(text)
    assert made.open == []
    return made


def test_the_page_needs_nothing_but_itself() -> None:
    text = page(sweep())
    seen = outline(text)
    assert seen.references == []
    assert "script" not in seen.elements
    assert not re.search(r"https?:|url\(|@import|@font-face", text)
    assert len(text) < 400_000


def test_an_arm_whose_tokens_change_with_the_batch_is_in_every_plot_but_that_of_the_cost_of_a_step() -> None:
    tuned = ArmLine(name="tree:31@2+7@8", title="tree, budget 31 up to 2 requests, 7 above", tokens=31)
    file = results(*(cell(arm.name, 10.0) for arm in (*LINES, tuned)), arms=(*LINES, tuned))
    plots = {figure.title: figure for figure in figures(file, series(file))}
    named = {title for title, figure in plots.items() if any(tuned.name in panel.plot for panel in figure.panels)}
    assert plots.keys() - named == {"Cost of a step by budget"}
    outline(page(file))


def test_what_was_compared_on_what_and_how_noisy_is_said_before_any_plot() -> None:
    text = page(sweep())
    head = text[: text.index("<section>")]
    for said in (*(arm.title for arm in ARMS), "2 x NVIDIA RTX A6000", "vllm 0.32.0", "/models/target (111111111111)",
                 "the model&#x27;s own sampling", "3 rounds", "Serve tree, budget 15: "):  # fmt: skip
        assert said in head, said


def test_names_from_elsewhere_are_text_and_never_markup() -> None:
    hostile = '<script>alert("x")</script>'
    one = cell("tree:15", 5.0, prompts=hostile)
    arm = ArmLine(name="tree:15", title=hostile, tokens=15)
    file = results(one, cell("ar", 20.0, prompts=hostile), arms=(LINES[0], arm))
    file = file.model_copy(update={"subject": file.subject.model_copy(update={"host": hostile})})
    assert "script" not in outline(page(file)).elements


def test_the_verdict_names_one_arm_and_where_another_is_faster() -> None:
    found = verdict(sweep(), series(sweep()))
    assert found.arm == "tree:15"
    assert found.sentence == (
        "Serve tree, budget 15: with 1 and 2 requests at a time it gives the most tokens a second, 3.54 to 4.00 times plain "
        "decoding; with 8 requests DFlash chain, K=7 is 1.52 times as fast."
    )


def test_a_lead_within_the_noise_is_no_lead() -> None:
    cells = [cell("ar", 20.0, round=r) for r in (1, 2, 3)]
    cells += [cell("chain:7", 6.0 + 0.5 * r, round=r) for r in (1, 2, 3)]
    cells += [cell("tree:15", 5.9 + 0.5 * r, round=r) for r in (1, 2, 3)]
    said = verdict(results(*cells), series(results(*cells)))
    assert said.arm == "tree:15"
    assert "(with 1 request DFlash chain, K=7 cannot be told from it)" in said.sentence


def test_plain_decoding_can_win_and_one_arm_alone_is_no_choice() -> None:
    slow = results(cell("ar", 5.0), cell("tree:15", 9.0))
    assert verdict(slow, series(slow)).sentence == (
        "Serve autoregressive: with 1 request at a time it gives the most tokens a second."
    )
    alone = results(cell("tree:15", 9.0))
    assert verdict(alone, series(alone)).arm is None


def test_an_arm_that_was_not_measured_at_the_slow_prompts_gains_nothing_by_that() -> None:
    file = results(
        cell("ar", 20.0), cell("tree:15", 5.0), cell("ar", 40.0, prompts="chat"), cell("tree:15", 30.0, prompts="chat"),
        cell("chain:7", 6.0),
    )  # fmt: skip
    assert verdict(file, series(file)).arm == "tree:15"


def test_an_interpreters_times_recommend_nothing_and_its_acceptance_is_told() -> None:
    text = page(sweep(build="cpu"))
    assert CPU_REMARK.replace("'", "&#x27;") in text
    assert "Which arm to serve cannot be said" in text
    assert verdict(sweep(build="cpu"), series(sweep(build="cpu"))).arm is None


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_results_without_any_measurement_say_so(build: str) -> None:
    assert re.search("Nothing (was measured|to recommend)", page(results(build=build)))
    assert figures(results(), ()) == ()


def test_one_round_says_that_its_noise_is_not_known() -> None:
    assert "not known" in noise_sentence(series(sweep(rounds=1)))
    seen = noise(series(sweep()), speed)
    assert seen is not None
    assert seen.deviation == pytest.approx(0.004, rel=0.05)
    assert seen.freedom == 2 * 5 * 12


def test_equal_answers_stand_beside_plain_decoding_against_itself() -> None:
    plain = [cell("ar", 20.0, round=1), cell("ar", 20.0, round=2, seen={"outputs": ("a", "b", "c", "x")})]
    tree = [cell("tree:15", 6.0, seen={"outputs": ("a", "b", "y", "z")})]
    found = {one.arm: one for one in series(results(*plain, *tree))}
    equal = match(found["tree:15"], found["ar"])
    assert equal is not None
    assert (equal.share, equal.control) == (0.5, 0.75)
    own = match(found["ar"], found["ar"])
    assert own is not None
    assert own.share == 0.75
    assert match(found["tree:15"], None) is None


def test_speed_up_is_beside_plain_decoding_at_the_same_place() -> None:
    [speed_up, *_] = figures(sweep(), series(sweep()))
    captions = [panel.caption for panel in speed_up.panels]
    assert captions[:3] == ["all prompts, greedy", "code, greedy", "chat, greedy"]
    assert "tree:15, 1 at a time: 158.7 tokens/s, 4.00 times plain decoding" in speed_up.panels[1].plot
    assert "chain:7, 8 at a time: " in speed_up.panels[1].plot


def test_without_plain_decoding_the_plot_has_tokens_a_second() -> None:
    file = results(cell("chain:7", 8.0), cell("tree:15", 6.0))
    [speed_up, *_] = figures(file, series(file))
    assert "output tokens a second" in speed_up.panels[0].plot
    assert 'class="rule"' not in speed_up.panels[0].plot


def test_acceptance_by_depth_weighs_every_draft_the_same() -> None:
    many = cell("chain:7", 8.0, seen={"drafts": 30, "accepted_by_depth": (1.0, 0.5)}).measured
    few = cell("chain:7", 8.0, seen={"drafts": 10, "accepted_by_depth": (0.2,)}).measured
    assert depths([many, few]) == (pytest.approx(0.8), pytest.approx(0.375))
    assert depths([]) == ()


def test_a_step_costs_its_time_per_token_times_its_tokens() -> None:
    file = results(cell("ar", 20.0), cell("tree:15", 6.0), cell("tree:15", 8.0, concurrency=4))
    cost = next(figure for figure in figures(file, series(file)) if figure.title.startswith("Cost"))
    assert "tree:15, 1 at a time: 33.0 ms a step" in cost.panels[0].plot
    assert "tree:15, 4 at a time: 44.0 ms a step" in cost.panels[0].plot
    assert "ar, 1 at a time: 20.0 ms a step" in cost.panels[0].plot


def test_marks_lie_where_their_numbers_say() -> None:
    points = tuple(Point(x, Spread(y, y * 0.9, y * 1.1), "", "ar") for x, y in ((0.0, 1.0), (1.0, 2.0), (2.0, 4.0)))
    plot = lines("p", Axis("x", ((0.0, "1"), (2.0, "4"))), Axis("y"), [Line("c1", points)])
    at = [(float(x), float(y)) for x, y in re.findall(r'<circle class="fill" cx="([\d.]+)" cy="([\d.]+)"', plot)]
    (x0, y0), (x1, y1), (x2, y2) = at
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y1 - y2 == pytest.approx(2 * (y0 - y1), abs=0.2)
    assert plot.count('class="range"') == 3


@pytest.mark.parametrize("highest", [0.03, 0.9, 1.0, 3.3, 7.0, 99.0, 12_345.0])
def test_ticks_are_few_round_and_reach_the_highest_value(highest: float) -> None:
    ticks = nice(highest)
    assert 4 <= len(ticks) <= 7
    assert ticks[0] == 0
    assert ticks[-1] >= highest > ticks[-1] * 0.6
    assert all(len(number(tick)) <= 6 for tick in ticks)


needs_browser = pytest.mark.skipif(
    browser.installed() is None, reason="no browser to look with: apt-get install --no-install-recommends chromium"
)


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 600])
def test_a_browser_shows_it_without_errors_and_no_text_covers_another(width: int, tmp_path: Path) -> None:
    seen = browser.look(page(sweep()), tmp_path, width=width)
    assert seen.logged == []
    assert seen.found["texts"] > 200
    for wrong in ("overlaps", "outside", "wide", "empty"):
        assert seen.found[wrong] == [], wrong
    assert seen.found["size"][1] <= seen.found["size"][0], "nothing has to be scrolled sideways"


@needs_browser
@pytest.mark.slow
def test_the_page_is_dark_where_the_reader_wants_it_dark_and_copes_with_few_and_large_numbers(tmp_path: Path) -> None:
    sparse = results(cell("ar", 9876.5, concurrency=128), cell("tree:15", 1234.5, concurrency=128), build="cpu")
    light, dark = (browser.look(page(sparse), tmp_path, width=900, dark=dark) for dark in (False, True))
    assert light.found["overlaps"] == light.found["outside"] == light.logged == []
    ink, paper = (brightness(colour) for colour in light.found["colours"])
    assert (ink < 0.2, paper > 0.8) == (True, True)
    ink, paper = (brightness(colour) for colour in dark.found["colours"])
    assert (ink > 0.8, paper < 0.2) == (True, True)


def brightness(colour: str) -> float:
    """Of rgb(r, g, b), from 0 to 1."""
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 765
