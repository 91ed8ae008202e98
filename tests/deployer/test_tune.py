"""Which tokens are verified at which batch size: chosen by some measurements and confirmed by others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from bench_host import cell, results

from deployer.bench.model import ArmLine, Cell
from deployer.bench.series import Series, series
from deployer.errors import UsageError
from deployer.tune.choose import candidates, choose, simplest
from deployer.tune.confirm import confirmed, rivals, trials
from deployer.tune.model import Choice
from deployer.tune.words import sentences

WIDTH = 15
Speeds = Mapping[str, Sequence[float]]
COUNTS = (1, 2, 4, 8)


# The decision. Tokens a second of each arm with 1, 2, 4 and 8 requests at a time.


def lines(arms: Speeds) -> tuple[ArmLine, ...]:
    return tuple(
        ArmLine(name=arm, title=arm, tokens=int(arm.rpartition(":")[2].partition("@")[0].replace("ar", "0")))
        for arm in arms
    )


def measured(speeds: Speeds, noise: Sequence[float] = (1.0,)) -> tuple[Series, ...]:
    """Every arm at each number of requests, in as many rounds as there are factors of noise."""
    cells: list[Cell] = []
    for arm, own in speeds.items():
        for count, speed in zip(COUNTS, own, strict=False):
            for number, factor in enumerate(noise, start=1):
                seen = {"output_tokens_per_second": speed * factor}
                cells.append(cell(arm, 1000 * count / speed, seen=seen, concurrency=count, round=number))
    return series(results(*cells, arms=lines(speeds)))


def chosen(speeds: Speeds, noise: Sequence[float] = (0.999, 1.0, 1.001)) -> Choice:
    return choose(measured(speeds, noise), lines(speeds), WIDTH)


PAYS = {
    "ar": (60, 118, 230, 440),
    "chain:7": (150, 270, 420, 560),
    "chain:15": (160, 280, 430, 520),
    "tree:7": (151, 272, 425, 600),
    "tree:15": (165, 295, 470, 540),
    "tree:31": (190, 320, 450, 420),
}


def test_each_number_of_requests_gets_the_tokens_that_are_the_fastest_there() -> None:
    choice = chosen(PAYS)
    assert choice.arm == "tree:31@2+15@4+7@8"
    assert [(pick.concurrency, pick.arm, pick.fastest) for pick in choice.picks] == [
        (1, "tree:31", "tree:31"),
        (2, "tree:31", "tree:31"),
        (4, "tree:15", "tree:15"),
        (8, "tree:7", "tree:7"),
    ]
    assert choice.picks[3].seen[0].output_tokens_per_second == pytest.approx(440)


def test_of_budgets_that_cannot_be_told_apart_the_smallest_is_taken() -> None:
    close = PAYS | {"tree:31": (167, 300, 450, 420)}
    assert chosen(close).arm == "tree:31@2+15@4+7@8", "a hundredth is enough where rounds differ by a thousandth"
    noisy = chosen(close, noise=(0.98, 1.0, 1.02))
    assert noisy.arm == "tree:15@4+7@8"
    assert (noisy.picks[0].arm, noisy.picks[0].fastest, noisy.picks[0].equals) == ("tree:15", "tree:31", ("tree:15",))


def test_with_one_round_only_two_hundredths_count_as_noise() -> None:
    assert chosen(PAYS | {"tree:31": (168, 300, 450, 420)}, noise=(1.0,)).arm == "tree:15@4+7@8"


def test_where_a_chain_is_faster_all_over_the_stock_engine_is_chosen_with_its_own_tokens_by_batch_size() -> None:
    slow = {arm: tuple(0.8 * speed for speed in own) if arm.startswith("tree") else own for arm, own in PAYS.items()}
    choice = chosen(slow)
    assert choice.arm == "chain:15@4+7@8"
    assert chosen({arm: slow[arm] for arm in ("ar", "chain:15", "tree:15")}).arm == "chain:15"


def test_a_tree_that_is_as_fast_as_a_chain_is_not_worth_its_engine() -> None:
    same = {arm: own for arm, own in PAYS.items() if arm in ("ar", "chain:15")} | {"tree:31": PAYS["chain:15"]}
    assert chosen(same).arm == "chain:15"


def test_where_nothing_beats_plain_decoding_nothing_is_drafted() -> None:
    choice = chosen(PAYS | {"ar": (500, 900, 1500, 2500)})
    assert choice.arm == "ar"
    assert {pick.arm for pick in choice.picks} == {"ar"}
    [first, *_] = sentences(choice, (), "ar", {"ar": "plain"})
    assert first == "Serve without drafts: no chain and no tree is faster by more than chance."


def test_where_plain_decoding_wins_the_engine_does_the_best_it_can_and_the_difference_is_said() -> None:
    """A tree's engine without drafts still runs its drafter: it is measured as tree:0 and not taken for plain decoding."""
    crowded = PAYS | {"ar": (60, 118, 230, 700), "tree:0": (50, 100, 200, 640)}
    choice = chosen(crowded)
    assert choice.arm == "tree:31@2+15@4+0@8"
    last = choice.picks[-1]
    assert (last.arm, last.fastest) == ("tree:0", "ar")
    titles = {arm: arm for arm in (*crowded, choice.arm)}
    said = sentences(choice, (), choice.arm, titles)
    assert said[-1] == "With 8 requests ar is 1.09 times as fast as what this engine does best there, tree:0."


def test_a_request_alone_always_has_drafts_if_any_has_for_the_gate_looks_at_one() -> None:
    odd = PAYS | {"tree:0": (1000, 100, 200, 300)}
    assert chosen(odd).picks[0].arm == "tree:31"


def test_a_lead_at_few_requests_does_not_pay_for_a_loss_at_many() -> None:
    lost = {"ar": (60, 118, 230, 440), "chain:7": (90, 150, 280, 500), "tree:31": (99, 150, 250, 200)}
    assert chosen(lost).arm == "chain:7"


def test_an_engine_that_was_not_measured_everywhere_is_no_choice() -> None:
    assert chosen(PAYS | {"tree:63": (900,)}).arm == "tree:31@2+15@4+7@8"


@pytest.mark.parametrize("arms", [("ar",), ("chain:7", "tree:15"), ("ar", "tree:0")])
def test_without_plain_decoding_or_anything_beside_it_there_is_nothing_to_choose(arms: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="nothing to choose from"):
        chosen({arm: PAYS.get(arm, (1, 2, 3, 4)) for arm in arms})


def test_the_candidates_go_from_no_node_to_the_most_there_are() -> None:
    assert candidates(15) == ("ar", "chain:7", "chain:15", "tree:0", "tree:7", "tree:15", "tree:31", "tree:63")
    assert candidates(7) == ("ar", "chain:3", "chain:7", "tree:0", "tree:3", "tree:7", "tree:15", "tree:31", "tree:63")


def test_a_drafter_that_predicts_more_than_a_tree_may_have_is_tuned_as_a_chain() -> None:
    assert candidates(63)[-2:] == ("tree:31", "tree:63")
    assert candidates(64) == ("ar", "chain:32", "chain:64")


def test_the_simplest_of_several_ways_by_their_doubt() -> None:
    speeds = {"ar": [100.0, 100.0], "chain": [103.0, 103.0], "tree": [110.0, 110.0]}
    assert simplest(speeds, [1.001, 1.001]) == "tree"
    assert simplest(speeds, [1.12, 1.12]) == "chain", "the mean of two is known better than each"
    assert simplest(speeds, [1.2, 1.2]) == "ar"
    assert math.exp(math.hypot(math.log(1.12), math.log(1.12)) / 2) == pytest.approx(1.083, abs=1e-3)


# The confirmation.


def test_the_choice_is_confirmed_beside_plain_decoding_and_every_chain_that_is_the_best_somewhere() -> None:
    assert rivals(chosen(PAYS)) == ("ar", "chain:7", "chain:15", "tree:31@2+15@4+7@8")
    assert rivals(chosen({arm: PAYS[arm] for arm in ("ar", "chain:15", "tree:31")}))[1] == "chain:15"


@pytest.mark.parametrize(
    ("again", "serve", "says"),
    [
        ((185, 310, 465, 590), "tree:31@2+15@4+7@8", "in rounds that it was not chosen by"),
        ((150, 270, 430, 540), "chain:15", "chosen first, is not faster by more than chance"),
    ],
)
def test_what_was_chosen_is_served_only_if_new_rounds_say_so_too(
    again: tuple[float, ...], serve: str, says: str
) -> None:
    choice = chosen(PAYS)
    speeds = {"ar": PAYS["ar"], "chain:7": PAYS["chain:7"], "chain:15": PAYS["chain:15"], choice.arm: again}
    made = trials(measured(speeds, (0.999, 1.0, 1.001)), lines(speeds))
    arm = confirmed(choice, made)
    assert arm == serve
    assert says in sentences(choice, made, arm, {name: name for name in (*PAYS, choice.arm)})[0]
