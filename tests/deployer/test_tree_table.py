"""[tree] table: nodes by the number of requests in a step, said in the inventory until `tune` has measured them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench_host import inventory
from calling import write_inventory
from pydantic import ValidationError
from serving import Host, Machine, applied
from serving import inventory as serving_inventory

from deployer.bench.arms import lines
from deployer.errors import UsageError
from deployer.inventory.load import load
from deployer.inventory.model import Inventory
from deployer.serve import decoding, plan
from deployer.serve.decoding import Decoding
from deployer.serve.options import TABLE, engine_options

TREE: dict[str, Any] = {"budget": 31, "table": [[1, 2, 31], [3, 8, 15]]}


def options(subject: Inventory) -> dict[str, Any]:
    """What vLLM reads of it."""
    return engine_options(subject, decoding.served(subject), target="/t", drafter="/d", port=8000)


def test_it_is_what_vllm_gets_beside_the_largest_budget() -> None:
    speculative = options(inventory(tree=TREE))["speculative-config"]
    assert speculative["num_speculative_tokens"] == 31
    assert speculative[TABLE] == [[1, 2, 31], [3, 8, 15]]


def test_without_one_the_budget_holds_for_every_number_of_requests() -> None:
    assert TABLE not in options(inventory(tree={"budget": 31}))["speculative-config"]


def test_it_says_nothing_where_the_tree_is_switched_off() -> None:
    assert decoding.served(inventory(tree=TREE | {"enabled": False})).kind == "chain"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ([[2, 8, 31]], "the sizes of table go up from 1 without a gap: 2 to 8 does not follow"),
        ([[1, 2, 31], [4, 8, 15]], "without a gap: 4 to 8 does not follow"),
        ([[1, 4, 31], [4, 8, 15]], "without a gap: 4 to 8 does not follow"),
        ([[1, 4, 31], [5, 4, 15]], "without a gap: 5 to 4 does not follow"),
        ([[1, 2, 63], [3, 8, 31]], "table has 63 tokens, and budget is 31"),
        ([[1, 2, 31], [3, 8, -1]], "table has -1 tokens"),
        ([[1, 2, 0], [3, 8, 31]], "table has 0 tokens for a request alone"),
        ([[1, 8, 15]], "the largest of table has to be budget: it is 15, and budget is 31"),
    ],
)
def test_one_that_contradicts_itself_is_named_when_the_file_is_read(
    table: list[list[int]], says: str, tmp_path: Path
) -> None:
    path = write_inventory(inventory(), tmp_path / "box.toml", tree={"budget": 31, "table": table})
    with pytest.raises(UsageError) as caught:
        load(str(path))
    assert says in str(caught.value)
    assert "correct tree" in caught.value.remedy
    assert caught.value.where == str(path)


def test_one_that_is_no_table_is_named_at_its_place(tmp_path: Path) -> None:
    path = write_inventory(inventory(), tmp_path / "box.toml", tree={"budget": 31, "table": [[1, 2, 31], [3, 8]]})
    with pytest.raises(UsageError, match=r"tree\.table\.1\.2 is missing"):
        load(str(path))


def test_beside_a_file_of_tune_it_is_refused() -> None:
    with pytest.raises(ValidationError, match="table and tuned exclude each other"):
        inventory(tree=TREE | {"tuned": Path("/x/box.tuned.toml")})


def test_requests_that_are_never_in_a_step_together_are_refused_before_anything_starts() -> None:
    subject = inventory(tree=TREE)
    few = subject.model_copy(update={"serve": subject.serve.model_copy(update={"options": {"max_num_seqs": 4}})})
    with pytest.raises(UsageError, match=r"\[tree\] table goes to 8 requests, and a step takes 4") as caught:
        decoding.served(few)
    assert caught.value.remedy == "end it at 4, or raise [serve.options] max-num-seqs"


def test_a_budget_below_the_drafters_width_is_refused_as_without_a_table() -> None:
    with pytest.raises(UsageError, match="below the drafter's width"):
        decoding.served(inventory(tree={"budget": 3, "table": [[1, 8, 3]]}))


def test_vllms_own_table_beside_it_is_refused_with_what_decides() -> None:
    subject = inventory(tree=TREE)
    given = {"speculative-config": {TABLE: [[1, 8, 7]]}}
    twice = subject.model_copy(update={"serve": subject.serve.model_copy(update={"options": given})})
    with pytest.raises(UsageError, match=r"comes from \[tree\] table"):
        options(twice)


def test_the_plan_says_it_and_a_change_of_it_is_a_stop_start(host: Host, machine: Machine) -> None:
    usual = serving_inventory()
    applied(plan.plan(usual, host))
    tree = usual.tree.model_copy(update={"enabled": True, "budget": 31, "table": ((1, 2, 31), (3, 8, 15))})
    subject = usual.model_copy(update={"tree": tree})
    made = plan.plan(subject, host)
    said = next(step.reason for step in made.steps if step.title == "decoding")
    assert said == "tree, budget 31 up to 2 requests, 15 above: [tree] table"
    applied(made)
    assert machine.options()["speculative-config"][TABLE] == [[1, 2, 31], [3, 8, 15]]
    assert plan.plan(subject, host).pending == ()


def test_the_benchs_tree_is_the_one_that_is_served() -> None:
    assert [line.name for line in lines(inventory(tree=TREE), ["tree"])] == ["tree:31@2+15@8"]


def test_production_has_one_for_every_number_of_requests_that_it_takes() -> None:
    """Which an estimate chose: benchmarks/gpu."""
    subject = load("ct129")
    assert subject.tree.table[-1][1] == subject.serve.options["max-num-seqs"]
    assert decoding.served(subject) == Decoding("tree", 31, subject.tree.table)
