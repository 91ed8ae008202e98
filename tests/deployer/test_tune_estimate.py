"""Budgets that were not measured: what the widest tree's counters say of them, and when that is worth saying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from bench_host import cell, results

from deployer.bench.model import ArmLine
from deployer.bench.series import Series, series
from deployer.tune.estimate import curve, guesses
from deployer.tune.model import Curve, Pick, Seen
from deployer.tune.words import estimated

TOKENS = {"ar": 0, "tree:0": 0, "tree:3": 3, "tree:7": 7, "tree:7@2": 7}


def trees(**changes: Mapping[str, object]) -> tuple[Series, ...]:
    """A tree of 7 that counts its nodes, one of 3, and one without any."""
    wide = {"acceptance_length": 2.75, "trees": 40, "drafts": 40, "accepted_by_node": (0.8, 0.5, 0.25, 0.0, 0.1, 0.1)}
    narrow = {"acceptance_length": 2.5, "trees": 40, "drafts": 40, "accepted_by_node": (0.8, 0.5, 0.2)}
    seen = {"ar": {}, "tree:0": {"trees": 0, "drafts": 0, "acceptance_length": 1.0}, "tree:3": narrow, "tree:7": wide}
    cells = [
        cell(arm, 10.0, seen={**own, **changes.get(arm.replace(":", "_"), {})}, round=number)
        for arm, own in seen.items()
        for number in (1, 2)
    ]
    lines = tuple(ArmLine(name=arm, title=arm, tokens=tokens) for arm, tokens in TOKENS.items())
    return series(results(*cells, arms=lines))


def test_what_a_budget_accepts_is_the_sum_of_its_first_nodes_and_the_largest_error_is_seen_where_it_was_measured() -> (
    None
):
    made = curve(trees(), TOKENS)
    assert made is not None
    assert made.arm == "tree:7"
    assert made.acceptance_lengths == pytest.approx((1.8, 2.3, 2.55, 2.55, 2.65, 2.75, 2.75))
    assert made.largest_error == pytest.approx(2.55 / 2.5 - 1)


def test_rounds_count_by_their_trees() -> None:
    cells = [
        cell("tree:3", 10.0, seen={"trees": trees, "accepted_by_node": shares}, round=number)
        for number, (trees, shares) in enumerate([(30, (1.0, 0.5)), (10, (0.0,))], start=1)
    ]
    made = curve(series(results(*cells, arms=(ArmLine(name="tree:3", title="", tokens=3),))), TOKENS)
    assert made == Curve(arm="tree:3", acceptance_lengths=(1.75, 2.125, 2.125), largest_error=None)


def test_an_engine_that_does_not_count_its_nodes_says_nothing() -> None:
    assert curve(trees(tree_7={"accepted_by_node": ()}), TOKENS) is None
    assert curve((), TOKENS) is None


LENGTHS = (2.0, 2.8, 3.4, 3.8, 4.1, 4.3, 4.45, *(4.45 + 0.05 * n for n in range(1, 9)))


def picked(speeds: Mapping[int, tuple[float, float]], doubt: float = 1.01) -> Pick:
    """Trees by their budgets: tokens a second, ms a step."""
    seen = tuple(
        Seen(
            arm=f"tree:{tokens}",
            tokens=tokens,
            output_tokens_per_second=speed,
            low=speed,
            high=speed,
            step_ms=step,
            acceptance_length=1.0,
        )
        for tokens, (speed, step) in speeds.items()
    )
    return Pick(concurrency=4, doubt=doubt, seen=seen, arm="tree:3", tokens=3, fastest="tree:3", equals=())


def found(pick: Pick, lengths: Sequence[float] = LENGTHS) -> list[tuple[int, str, float]]:
    made = Curve(arm="tree:15", acceptance_lengths=tuple(lengths), largest_error=0.02)
    return [(guess.tokens, guess.beside, guess.gain) for guess in guesses(made, [pick])]


def test_between_two_budgets_a_faster_one_is_named() -> None:
    """Acceptance bends at 7 nodes, and the cost rises evenly: 3 and 15 nodes are on both sides of the best."""
    steps = {3: 10.0, 15: 16.0}
    pick = picked({tokens: (1000 * LENGTHS[tokens - 1] / step, step) for tokens, step in steps.items()})
    [(tokens, beside, gain)] = found(pick)
    assert (tokens, beside) == (6, "tree:3")
    assert gain == pytest.approx(4.3 / 11.5 / (3.4 / 10))


def test_a_budget_that_was_measured_is_no_guess() -> None:
    """There the estimate is the measurement, whatever the counters say."""
    pick = picked({3: (300.0, 10.0), 6: (400.0, 11.5), 15: (310.0, 16.0)})
    flat = [1.0 + 0.01 * n for n in range(15)]
    assert found(pick, flat) == []


def test_what_may_be_chance_is_not_named() -> None:
    steps = {3: 10.0, 15: 16.0}
    speeds = {tokens: (1000 * LENGTHS[tokens - 1] / step, step) for tokens, step in steps.items()}
    assert found(picked(speeds, doubt=1.2)) == []


def test_one_tree_alone_has_nothing_between() -> None:
    assert found(picked({15: (300.0, 16.0), 0: (100.0, 9.0)})) == []


def test_answers_of_one_token_time_no_step_and_say_nothing_of_what_lies_between() -> None:
    assert found(picked({3: (300.0, 0.0), 7: (310.0, 0.0), 15: (305.0, 0.0)})) == []


def test_an_estimate_is_said_with_what_it_is_worth() -> None:
    pick = picked({tokens: (1000 * LENGTHS[tokens - 1] / step, step) for tokens, step in {3: 10.0, 15: 16.0}.items()})
    made = Curve(arm="tree:15", acceptance_lengths=LENGTHS, largest_error=0.02)
    assert estimated(made, guesses(made, [pick])) == (
        "With 4 requests a tree of 6 nodes should be 1.10 times as fast as tree:3: add tree:6 to --arms to measure it.",
        "An estimate from tree:15, whose counters miss what smaller trees accepted by up to 2.0%.",
    )
    assert estimated(made, ()) == ()
