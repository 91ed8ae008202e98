"""Files of results: what cannot be written is refused before anything is measured, and what is there stays whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import Caller

from deployer.cli.results import to_be_written, write
from deployer.errors import UsageError


def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    to_be_written("ct129", tmp_path / "now.json", None, tmp_path / "{host}.html")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_named_with_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder is not there") as refused:
        to_be_written("ct129", tmp_path / "{host}" / "now.json")
    assert str(tmp_path / "ct129") in str(refused.value.where)
    assert f"mkdir -p {tmp_path / 'ct129'}" in str(refused.value.remedy)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is a folder"):
        to_be_written("ct129", tmp_path)


def test_what_is_written_replaces_the_whole_file_and_leaves_no_part(tmp_path: Path) -> None:
    file = tmp_path / "ct129.json"
    file.write_text("old")
    write(tmp_path / "{host}.json", "new", "ct129")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize(
    ("verb", "option"), [("bench", "--out"), ("bench", "--html"), ("tune", "--out"), ("tune", "--html")]
)
def test_bench_and_tune_refuse_before_they_reach_the_host(
    verb: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ct129 cannot be reached from here: this is said first, and no line of a connection is."""
    called = Caller(capsys)(verb, "inventory/ct129.toml", option, str(tmp_path / "missing" / "now"))
    assert called.code == 2
    assert "the folder is not there" in called.stderr
    assert "mkdir -p" in called.stderr
