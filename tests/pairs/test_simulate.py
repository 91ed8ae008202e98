"""Decoding simulated on traces: what grows, when it stops, what it costs. Traces made by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pairs import costs, policies, simulate, tables, trace
from benchmarks.pairs.costs import Curve
from benchmarks.pairs.trace import RANKS, Trace

REPO = Path(__file__).resolve().parents[2]
WIDTH = 3
FLAT = Curve("made up", 1, ((0, 10.0), (3, 10.0), (7, 10.0)))
STEEP = Curve("made up", 1, ((0, 10.0), (3, 30.0), (7, 70.0)))


def text(best: float, ranks: list[list[int]], width: int = WIDTH) -> Trace:
    """A drafter that gives its first rank the chance `best` everywhere and each later rank half of what is left; one row of ranks a
    block."""
    chances = np.array([best, *((1 - best) * 0.5**rank for rank in range(1, RANKS))])
    logprobs = np.broadcast_to(np.log(chances), (len(ranks), width, RANKS)).astype(np.float32)
    none = np.zeros(0, np.float32)
    return Trace(none.astype(np.int64), logprobs, np.array(ranks), none, none)


def random_text(rng: np.random.Generator, blocks: int) -> Trace:
    return text(rng.uniform(0.3, 0.9), rng.choice([0, 0, 0, 1, 2, RANKS], size=(blocks, WIDTH)).tolist())


def test_the_spine_comes_first_and_every_beginning_is_a_tree():
    grown = [node for node, _ in policies.grown(policies.plain(), text(0.5, [[0] * WIDTH]), 0, 9)]
    assert grown[:WIDTH] == [(0,), (0, 0), (0, 0, 0)]
    assert len(grown) == len(set(grown)) == 9
    for i, node in enumerate(grown):
        assert node[:-1] in [(), *grown[:i]]


def test_without_the_spine_first_nodes_come_by_their_chance():
    grown = policies.grown(policies.without_spine(), text(0.6, [[0] * WIDTH]), 0, 9)
    scores = [score for _, score in grown]
    assert scores == sorted(scores, reverse=True)
    assert [node for node, _ in grown][:4] == [(0,), (0, 0), (0, 0, 0), (1,)]


def test_a_step_costs_what_the_next_rung_costs():
    curve = Curve("made up", 2, ((0, 5.0), (7, 8.0), (15, 9.0)))
    assert [curve.ms(nodes) for nodes in (0, 1, 14, 15, 30)] == [5.0, 8.0, 8.0, 9.0, 9.0]
    with pytest.raises(ValueError, match="costs end at 15 nodes"):
        curve.ms(31)


def choice(best: float, curve: Curve) -> list[int]:
    tree = policies.grown(policies.without_spine(), text(best, [[0] * WIDTH]), 0, 7)
    return simulate.stop([tree] * curve.batch, curve)


def test_a_tree_goes_on_while_nodes_cost_nothing_and_never_begins_where_they_cost_too_much():
    assert choice(0.6, FLAT) == [7]
    assert choice(0.6, STEEP) == [0]


def test_a_sure_drafter_gets_the_nodes_that_an_unsure_one_does_not():
    curve = Curve("made up", 1, ((0, 10.0), (3, 14.0)))
    assert choice(0.9, curve) == [3]  # 1 + 0.9 + 0.81 + 0.73 tokens for 14 ms beside 1 for 10
    assert choice(0.1, curve) == [0]


def test_the_best_rung_is_taken_and_not_the_first_rise():
    stairs = Curve("made up", 1, ((0, 10.0), (1, 30.0), (7, 30.0)))
    assert choice(0.9, Curve("made up", 1, ((0, 10.0), (1, 30.0)))) == [0]
    assert choice(0.9, stairs) == [7]


def test_a_batch_shares_its_nodes_by_what_they_are_expected_to_bring():
    sure, unsure = (policies.grown(policies.without_spine(), text(best, [[0] * WIDTH]), 0, 7) for best in (0.95, 0.3))
    sizes = simulate.stop([sure, unsure], Curve("made up", 2, ((0, 10.0), (2, 10.0))))
    assert sizes == [3, 1]  # four nodes in all: 0.95, 0.90, 0.86, and 0.35 of the other's


def test_equal_chances_are_cut_at_the_bar():
    tree = policies.grown(policies.without_spine(), text(0.6, [[0] * WIDTH]), 0, 7)
    sizes = simulate.stop([tree, tree, tree], Curve("made up", 3, ((0, 10.0), (1, 10.0), (2, 10.0))))
    assert sum(sizes) == 6


def test_a_decoded_text_counts_tokens_steps_nodes_and_milliseconds():
    # the first step accepts the whole block, the second nothing (the token is below all ranks), then the text ends
    ranks = [[0, 0, 0]] + [[RANKS] * WIDTH] * 4 + [[-1] * WIDTH]
    found = simulate.decoded(policies.plain(), [text(0.6, ranks)], FLAT, simulate.fixed(3))
    (walk,) = found.texts
    assert (walk.tokens, walk.steps, walk.nodes, walk.ms, walk.at) == (5, 2, 6, 20.0, 5)
    assert found.cell()["tokens_per_ms"][0] == 0.25
    assert found.cell()["tokens"] == 2.5


def test_a_fixed_budget_in_lock_step_takes_the_steps_of_the_walk_alone():
    rng = np.random.default_rng(0)
    texts = [random_text(rng, 60) for _ in range(6)]
    curve = Curve("made up", 1, ((0, 10.0), (7, 12.0)))
    found = simulate.decoded(policies.plain(), texts, curve, simulate.fixed(7))
    assert [(t.tokens, t.steps) for t in found.texts] == [policies.walked(policies.plain(), t, 7) for t in texts]
    assert all(t.ms == pytest.approx(12.0 * t.steps) for t in found.texts)


def test_decoding_ends_when_a_batch_is_no_longer_full():
    ranks = [[0, 0, 0]] * 8
    found = simulate.decoded(
        policies.plain(), [text(0.6, ranks)] * 3, Curve("made up", 2, ((0, 10.0), (3, 12.0))), simulate.fixed(3)
    )
    steps = [t.steps for t in found.texts]
    assert steps[:2] == [2, 2]
    assert steps[2] == 0  # nobody beside it
    assert sum(t.ms for t in found.texts) == pytest.approx(24.0)


def test_policies_fitted_on_one_half_are_tried_on_the_other():
    rng = np.random.default_rng(1)
    found = simulate.tried([random_text(rng, 40) for _ in range(4)], (3, 7))
    assert found["logprobs"]["7"][0] >= found["logprobs"]["3"][0] == found["chain"]["3"][0]
    assert {"temperature by depth", "sibling discount", "rank table by depth", "logprobs, no spine first"} <= set(found)


def test_a_stop_that_knows_the_chances_is_no_worse_than_the_best_fixed_budget():
    rng = np.random.default_rng(2)

    def honest() -> Trace:
        """A drafter whose confidence is right and differs from text to text."""
        best = rng.choice([0.2, 0.9])
        chances = np.array([best, *((1 - best) * 0.5**rank for rank in range(1, RANKS))])
        ranks = rng.choice(RANKS, p=chances / chances.sum(), size=(80, WIDTH))
        return text(best, ranks.tolist())

    found = simulate.paid(
        [honest() for _ in range(120)], Curve("made up", 1, ((0, 10.0), (1, 12.0), (3, 16.0), (7, 24.0)))
    )
    fixed = [cell["tokens_per_ms"][0] for name, cell in found.items() if name.endswith("nodes")]
    assert found["stop"]["tokens_per_ms"][0] > max(fixed)


def test_traces_come_back_from_disk_as_far_as_simulation_reads_them(tmp_path):
    rng = np.random.default_rng(3)
    texts = [random_text(rng, n) for n in (5, 9, 2)]
    assert trace.save({0.0: texts, 1.0: texts[:2]}, tmp_path / "traces.npz", 1 << 20) == {0.0: 3, 1.0: 2}
    back = trace.load(tmp_path / "traces.npz")
    assert {heat: len(found) for heat, found in back.items()} == {0.0: 3, 1.0: 2}
    for kept, made in zip(back[0.0], texts, strict=True):
        assert np.array_equal(kept.ranks, made.ranks)
        assert np.allclose(kept.logprobs, made.logprobs, atol=0.01)


def test_traces_that_do_not_fit_lose_texts_and_say_how_many_are_left(tmp_path):
    rng = np.random.default_rng(4)
    noise = [
        Trace(t.ids, rng.normal(size=t.logprobs.shape).astype(np.float32), t.ranks, t.entropy, t.gaps)
        for t in (random_text(rng, 40) for _ in range(20))
    ]
    kept = trace.save({0.0: noise}, tmp_path / "traces.npz", 30_000)
    assert 2 <= kept[0.0] < 20
    assert (tmp_path / "traces.npz").stat().st_size <= 30_000


def test_costs_say_where_they_come_from():
    assert costs.cost("H200", "tree:31", 8).source == costs.MEASURED
    assert costs.cost("H200", "chain:11", 8).source == costs.MODELLED
    estimate = costs.cost("2x RTX A6000", "tree:31", 8)
    assert estimate.source == costs.ESTIMATED
    assert estimate.low < estimate.ms < estimate.high
    with pytest.raises(ValueError, match="no cost of a step on H100"):
        costs.cost("H100", "ar", 1)


def test_it_runs_on_a_folder_and_keeps_what_the_results_held(tmp_path):
    rng = np.random.default_rng(5)
    wide = [text(0.6, rng.choice([0, 0, 0, 1], size=(30, 15)).tolist(), width=15) for _ in range(simulate.FEWEST)]
    trace.save({0.0: wide, 1.0: wide[:5]}, tmp_path / "traces.npz", 1 << 20)
    (tmp_path / "results.json").write_text(json.dumps({"pair": "made up"}))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.pairs.simulate", str(tmp_path)],
        cwd=REPO, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["pair"] == "made up"
    assert set(results["simulated"]) == {"0.0"}
    assert "T=1.0: 5 texts are too few" in done.stdout
    found = results["simulated"]["0.0"]
    assert found["texts"] == simulate.FEWEST
    assert set(found["paid"]) == {f"{card}, batch {batch}" for card in costs.CARDS for batch in costs.BATCHES}
    assert set(found["paid"]["H200, batch 8"]) == {
        "7 nodes",
        "15 nodes",
        "31 nodes",
        "63 nodes",
        "stop",
        "stop, calibrated",
    }
    assert "tokens/ms" in tables.paid(results)


def test_a_folder_without_traces_is_named(tmp_path):
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"traces\.npz is missing"):
        simulate.add(tmp_path)
