"""What `tune` can be asked: what no measurement could answer is refused before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_host import BenchHost, Box, inventory
from tuning import asked, done

from deployer.bench.arms import lines
from deployer.bench.sweep import sweep_of
from deployer.errors import UsageError
from deployer.serve import decoding, tuned
from deployer.serve.tuned import Tuned
from deployer.tune.found import Tune
from deployer.tune.plan import measuring


def of(arms: str, file: Path) -> Tune:
    return Tune(sweep_of(inventory(), arms=arms, concurrency="1,2", rounds=1), file)


def test_a_table_is_no_candidate(host: BenchHost, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tree:31@2\+15@8 is a table already"):
        measuring(of("ar,tree:31@2+15@8", tmp_path / "f.toml"), inventory(), host)


def test_nor_is_the_inventorys_own_tree_where_a_table_was_tuned(host: BenchHost, box: Box, tmp_path: Path) -> None:
    file = tmp_path / "a.tuned.toml"
    done(asked(file), host)
    box.log.clear()
    with pytest.raises(UsageError, match=r"tree:31@1\+7@2 is a table already"):
        measuring(of("ar,chain,tree", tmp_path / "b.toml"), inventory(tree={"tuned": file}), host)
    assert measuring(of("ar,chain,tree", tmp_path / "b.toml"), inventory(), host).pending, "one budget is a candidate"


@pytest.mark.parametrize("arms", ["ar", "chain:7,tree:31", "ar,mtp", "ar,tree:0"])
def test_arms_that_leave_nothing_to_choose_are_refused_before_anything_is_measured(
    arms: str, host: BenchHost, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="nothing to choose from") as caught:
        measuring(of(arms, tmp_path / "f.toml"), inventory(), host)
    assert (caught.value.where, caught.value.remedy) == ("--arms", "ar and some of chain:K and tree:B")


def test_the_targets_own_head_may_be_measured_beside_what_is_chosen_from(host: BenchHost, tmp_path: Path) -> None:
    assert measuring(of("ar,mtp,chain:7", tmp_path / "f.toml"), inventory(), host).pending


def test_more_requests_than_a_step_takes_are_refused_for_they_would_only_wait(host: BenchHost, tmp_path: Path) -> None:
    few = inventory(serve={"options": {"max_num_seqs": 2}})
    with pytest.raises(UsageError, match="4, 16 requests are never in a step together") as caught:
        measuring(asked(tmp_path / "f.toml", concurrency="1,2,4,16"), few, host)
    assert (caught.value.where, caught.value.remedy) == ("--concurrency", "at most 2, or change max-num-seqs")
    assert measuring(asked(tmp_path / "f.toml", concurrency="1,2"), few, host).pending


def test_a_host_whose_inventory_names_the_file_already_can_be_tuned(host: BenchHost, tmp_path: Path) -> None:
    subject = inventory(tree={"tuned": tmp_path / "box.tuned.toml"})
    done(asked(tmp_path / "box.tuned.toml"), host, subject)
    assert str(decoding.served(subject)) == "tree, budget 31 up to 1 request, 7 above"


def test_a_drafter_that_predicts_more_than_a_tree_may_have_is_tuned_and_served_as_a_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "drafter_width", lambda inventory: 64)
    with pytest.raises(UsageError, match="predicts 64 tokens, and a tree has at most 63 nodes"):
        lines(inventory(), ("tree:63",))
    with pytest.raises(UsageError) as caught:
        decoding.served(inventory())
    assert caught.value.remedy == "[tree] enabled = false for the plain chain"
    file = tmp_path / "a.tuned.toml"
    file.write_text(tuned.text(Tuned(kind="chain", tokens=64, host="a", when="w", release="r", drafter="d"), ()))
    assert decoding.served(inventory(tree={"tuned": file})) == decoding.Decoding("chain", 64)
