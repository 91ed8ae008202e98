"""The file that `tune` writes: what it may say, and what an inventory that names it serves."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_host import inventory
from calling import write_inventory

from deployer.bench.arms import lines, usual
from deployer.errors import UsageError
from deployer.inventory.load import load, names
from deployer.serve import decoding


def text(**changes: object) -> str:
    usual: dict[str, object] = {"kind": "tree", "tokens": 31, "table": [[1, 2, 31], [3, 8, 7]], "host": "a"}
    values = {**usual, "when": "w", "release": "r", "drafter": "d", **changes}
    return "".join(f"{key} = {value!r}\n" for key, value in values.items())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"table": [[2, 2, 31]]}, "2 to 2 does not follow"),
        ({"table": [[1, 2, 31], [4, 8, 7]]}, "4 to 8 does not follow"),
        ({"table": [[1, 2, 32]]}, "table has 32 tokens, and tokens is 31"),
        ({"kind": "autoregressive"}, "tokens is 0 if kind is autoregressive"),
        ({"table": [[1, 8, 0]]}, "table has 0 tokens for a request alone"),
        ({"kind": "autoregressive", "tokens": 0, "table": [[1, 8, 0]]}, "leave table out"),
        ({"tokens": 64}, "64 tokens do not go with a tree"),
        ({"budget": 3}, "budget"),
        ({"kind": "chain", "tokens": 8, "table": []}, "8 tokens do not go with a chain"),
        ({"tokens": 5, "table": []}, "5 tokens do not go with a tree"),
    ],
)
def test_a_file_that_contradicts_itself_or_the_drafter_is_named(
    changes: dict[str, object], says: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.tuned.toml"
    file.write_text(text(**changes))
    with pytest.raises(UsageError, match=says) as caught:
        decoding.served(inventory(tree={"tuned": file}))
    assert caught.value.where == str(file)


def test_a_file_that_is_missing_is_named_with_what_makes_it(tmp_path: Path) -> None:
    """As where the inventory names it before the box was ever tuned."""
    path = tmp_path / "no.tuned.toml"
    with pytest.raises(UsageError, match="is not there") as caught:
        decoding.served(inventory(tree={"tuned": path}))
    assert caught.value.where == str(path)
    assert caught.value.remedy == "ddtree-deploy tune staging makes it; until then take the line out, and budget holds"


def test_the_switch_of_the_inventory_holds_whatever_was_tuned(tmp_path: Path) -> None:
    file = tmp_path / "a.tuned.toml"
    file.write_text(text())
    assert decoding.served(inventory(tree={"tuned": file})).table == ((1, 2, 31), (3, 8, 7))
    assert decoding.served(inventory(tree={"tuned": file, "enabled": False})).kind == "chain"


@pytest.mark.parametrize(
    ("changes", "served", "benched"),
    [
        ({}, "tree, budget 31 up to 2 requests, 7 above", ("ar", "chain:7", "tree:31@2+7@8")),
        ({"kind": "chain", "tokens": 7, "table": [[1, 2, 7], [3, 8, 3]]}, "DFlash chain, K=7 up to 2 requests, 3 above",
         ("ar", "chain:7@2+3@8")),
        ({"kind": "autoregressive", "tokens": 0, "table": []}, "autoregressive", ("ar", "chain:7")),
    ],
)  # fmt: skip
def test_what_serve_runs_is_among_what_up_and_bench_measure_and_a_tree_only_if_it_is_served(
    changes: dict[str, object], served: str, benched: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "a.tuned.toml"
    file.write_text(text(**changes))
    # A budget that no tree could have says nothing where none is served.
    subject = inventory(tree={"tuned": file, "budget": 3})
    assert str(decoding.served(subject)) == served
    assert tuple(line.name for line in lines(subject, usual(subject))) == benched


def test_switched_off_the_bench_has_the_plain_chain_that_is_served(tmp_path: Path) -> None:
    file = tmp_path / "a.tuned.toml"
    file.write_text(text(kind="chain", tokens=7, table=[[1, 2, 7], [3, 8, 3]]))
    subject = inventory(tree={"tuned": file, "enabled": False})
    assert str(decoding.served(subject)) == "DFlash chain, K=7"
    assert [line.name for line in lines(subject, usual(subject))] == ["ar", "chain:7"]


def test_the_inventory_names_the_file_relative_to_itself_and_it_is_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "inventory"
    folder.mkdir()
    (folder / "box.tuned.toml").write_text(text())
    written = write_inventory(inventory(tree={"tuned": Path("box.tuned.toml")}), folder / "box.toml")
    assert load(str(written)).tree.tuned == folder / "box.tuned.toml"
    monkeypatch.chdir(tmp_path)
    assert {name for name in names() if name.startswith("box")} == {"box"}
