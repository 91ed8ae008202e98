"""Acceptance times cost: made-up answers, evaluated in the real schema, at the measured and estimated steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pairs import product
from benchmarks.pairs.costs import ESTIMATED, MEASURED, MODELLED, cost
from tests.pairs import evaluations

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """As evaluation writes and a file holds them."""
    made: dict[str, Any] = json.loads(json.dumps(evaluations.results()))
    return made


def of(results: dict[str, Any], heat: str, card: str, batch: int) -> product.Cell:
    (found,) = [c for c in product.product(results) if (c.heat, c.card, c.batch) == (heat, card, batch)]
    return found


def rows(found: product.Cell) -> dict[str, product.Row]:
    return {row.arm: row for row in found.rows}


def test_every_temperature_card_and_batch_has_every_arm_and_plain_decoding(results):
    found = product.product(results)
    assert len(found) == 2 * 2 * 2
    for one in found:
        assert [row.arm for row in one.rows] == ["ar", *evaluations.LENGTHS]


def test_speed_is_the_measured_acceptance_over_the_measured_step(results):
    row = rows(of(results, "0.0", "H200", 8))["tree:15"]
    length = results["arms"]["tree:15"]["0.0"]["all"]["acceptance"]
    assert row.length.rounded() == length
    assert row.speed.value == pytest.approx(1e3 * 8 * length[0] / 22.95, rel=1e-4)
    assert (row.speed.low, row.speed.high) == pytest.approx(tuple(8e3 * end / 22.95 for end in length[1:]), rel=1e-4)


def test_plain_decoding_has_one_token_a_step(results):
    row = rows(of(results, "1.0", "H200", 1))["ar"]
    assert row.speed.value == pytest.approx(1e3 / 15.26)
    assert row.over is None


def test_the_best_chain_is_the_fastest_not_the_one_that_accepts_most(results):
    slow = of(results, "0.0", "H200", 8)
    lengths = {arm: row.length.value for arm, row in rows(slow).items()}
    assert lengths["chain:15"] > lengths["chain:7"]
    assert slow.chain.arm == "chain:7"  # 6 % fewer tokens in a step that is 18 % shorter


def test_a_tree_over_the_chain_keeps_the_interval_of_prompts_drawn_together(results):
    found = of(results, "0.0", "H200", 1)
    over = rows(found)["tree:31"].over
    assert over is not None
    longer = rows(found)["tree:31"].length.value / found.chain.length.value
    assert over.value == pytest.approx(longer * found.chain.cost.ms / 18.39, rel=1e-9)
    assert over.low < over.value < over.high


def test_a_tree_that_is_the_chain_gains_what_its_step_is_shorter():
    same = evaluations.results({"chain:15": 3.2, "tree:15": 3.2})
    found = of(same, "0.0", "H200", 1)
    over = rows(found)["tree:15"].over
    assert over is not None
    assert over.rounded() == [pytest.approx(20.47 / 18.37, abs=1e-3)] * 3


def test_two_a6000_are_an_estimate_with_the_acceptance_in_its_path_and_a_range_of_rates(results):
    found = of(results, "0.0", "2x RTX A6000", 8)
    for row in found.rows:
        assert row.cost.source == ESTIMATED
        assert row.cost == cost("2x RTX A6000", row.arm, 8, row.length.value)
        assert row.cost.low < row.cost.ms < row.cost.high
    worse, better = cost("2x RTX A6000", "tree:63", 8, 2.0), cost("2x RTX A6000", "tree:63", 8, 8.0)
    assert worse.ms < better.ms  # a longer path has more to commit


def test_the_print_says_what_it_is_and_where_each_step_comes_from(results):
    said = product.shown(results)
    assert said.startswith("A WHAT-IF.")
    assert "measured on the pair made-up alone" in said
    assert "Qwen3.6-27B's" in said
    assert "nothing was measured on an RTX A6000" in said
    assert said.count("what-if, T=") == 8
    lines = [line for line in said.splitlines() if line.startswith("  tree:31")]
    assert sum(MEASURED in line for line in lines) == sum(ESTIMATED in line for line in lines) == 4
    assert MODELLED in product.shown(evaluations.results({"chain:11": 3.0, "tree:7": 2.8}))


def test_one_set_alone(results):
    code = product.product(results, "code")[0]
    assert rows(code)["tree:31"].length.rounded() == results["arms"]["tree:31"]["0.0"]["code"]["acceptance"]
    with pytest.raises(SystemExit, match="has no counts of poems"):
        product.product(results, "poems")


@pytest.mark.parametrize(
    ("lengths", "missing"),
    [
        ({"tree:31": 4.0}, r"a chain \(chain:K\)"),
        ({"chain:7": 3.0}, r"a tree \(tree:B\)"),
        ({}, "a chain .* and a tree"),
    ],
)
def test_results_without_a_chain_or_a_tree_are_refused_by_name(lengths, missing):
    with pytest.raises(SystemExit, match=f"no product without {missing}"):
        product.product(evaluations.results(lengths))


def test_what_an_arm_failed_of_is_said_with_the_refusal():
    failed = evaluations.results({"tree:31": 4.0}) | {"errors": {"chain:7": "exit code 1: out of memory"}}
    with pytest.raises(SystemExit, match="chain:7: exit code 1: out of memory"):
        product.product(failed)


def test_results_of_an_older_schema_or_of_unequal_prompts_are_refused(results):
    old = json.loads(json.dumps(results))
    for by_kind in old["arms"]["tree:31"].values():
        for found in by_kind.values():
            found.pop("counts", None)
    with pytest.raises(SystemExit, match=r"tree:31 at T=0\.0 has no counts of all"):
        product.product(old)
    uneven = json.loads(json.dumps(results))
    uneven["arms"]["chain:7"]["0.0"]["code"]["counts"].pop()
    with pytest.raises(SystemExit, match="different numbers of prompts"):
        product.product(uneven)
    with pytest.raises(SystemExit, match="the results have no arm"):
        product.product({})


def test_it_runs_on_a_file_and_names_one_that_is_missing(results, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(results))

    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "benchmarks.pairs.product", str(tmp_path / name)]
        return subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)

    done = run("results.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == product.shown(results)
    missing = run("other.json")
    assert missing.returncode == 1
    assert "other.json is missing" in missing.stderr
