"""Where `tune` writes: looked at before anything is measured; never lost, never half there, and left alone if it is right."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from bench_host import BenchHost, Box, inventory
from calling import Caller
from recorder import Recorder
from tuning import WORDS, applied, asked, done, ran

from deployer.errors import Exit, UsageError
from deployer.serve import tuned
from deployer.tune import file
from deployer.tune.plan import confirming, measuring, writing

HAND = "# by hand\n"


def in_(folder: Path) -> dict[str, str]:
    """What is there, by name."""
    return {path.name: path.read_text() for path in folder.iterdir()}


# Before anything is measured.


def test_a_place_where_nothing_can_be_written_is_named_before_anything_is_measured(
    host: BenchHost, box: Box, tmp_path: Path
) -> None:
    (tmp_path / "d.toml").mkdir()
    for path, where, says in (
        (tmp_path / "no" / "x.toml", tmp_path / "no", "there is no such folder"),
        (tmp_path / "d.toml", tmp_path / "d.toml", "it is there and no file"),
    ):
        with pytest.raises(UsageError, match=says) as caught:
            measuring(asked(path), inventory(), host)
        assert (caught.value.where, "--file FILE" in caught.value.remedy) == (str(where), True)
    assert (box.log, [path.name for path in tmp_path.iterdir()]) == ([], ["d.toml"])


@pytest.mark.parametrize("there", [HAND.encode(), b"# \xff\n"])
def test_a_file_that_may_say_otherwise_is_refused_before_anything_is_measured_unless_it_may_be_replaced(
    there: bytes, host: BenchHost, box: Box, tmp_path: Path
) -> None:
    tune = asked(tmp_path / "box.tuned.toml")
    tune.file.write_bytes(there)
    with pytest.raises(UsageError, match="it is there and may say otherwise") as caught:
        measuring(tune, inventory(), host)
    assert caught.value.remedy.startswith("--overwrite keeps it as box.tuned.toml.before and writes the new one")
    assert box.log == []
    done(replace(tune, overwrite=True), host)
    assert (tmp_path / "box.tuned.toml.before").read_bytes() == there
    assert tuned.read(tune.file).tokens == 31
    assert len(list(tmp_path.iterdir())) == 2


def test_a_confirmation_that_is_left_is_refused_too(host: BenchHost, box: Box, tmp_path: Path) -> None:
    def cut(what: str) -> None:
        if what.startswith("tree:31@1+7@2"):
            raise KeyboardInterrupt

    tune, box.before_client = asked(tmp_path / "box.tuned.toml", rounds=1), cut
    with pytest.raises(KeyboardInterrupt):
        applied(measuring(tune, inventory(), host))
    tune.file.write_text(HAND)
    assert measuring(tune, inventory(), host).pending == ()
    with pytest.raises(UsageError, match="may say otherwise"):
        confirming(tune, inventory(), host)


def test_where_all_is_measured_a_file_that_says_otherwise_is_replaced_only_if_that_is_wished(
    host: BenchHost, box: Box, tmp_path: Path
) -> None:
    tune = asked(tmp_path / "box.tuned.toml")
    done(tune, host)
    tune.file.write_text(HAND)
    with pytest.raises(UsageError, match="is not what was found now: tree, budget 31"):
        done(tune, host)
    assert in_(tmp_path) == {"box.tuned.toml": HAND}
    box.log.clear()
    done(replace(tune, overwrite=True), host)
    assert box.log == [], "what was measured is not lost"
    assert (tmp_path / "box.tuned.toml.before").read_text() == HAND


def test_of_the_command_line_that_is_exit_code_2_and_no_host_was_changed(
    call: Caller, named: Path, box: Box, tmp_path: Path
) -> None:
    (tmp_path / "box.tuned.toml").write_text(HAND)
    assert call.json("tune", named, *WORDS).exit_code == Exit.USAGE
    assert box.log == []


# The same decision.


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_decides_the_same_is_left_with_the_comments_of_who_reviewed_it(
    overwrite: bool, host: BenchHost, tmp_path: Path
) -> None:
    tune = asked(tmp_path / "box.tuned.toml", overwrite=overwrite)
    done(tune, host)
    reviewed = "# reviewed\n" + re.sub("(?m)^# .*\n", "", tune.file.read_text())
    tune.file.write_text(reviewed)
    done(tune, host)
    assert in_(tmp_path) == {"box.tuned.toml": reviewed}


def test_more_rounds_that_decide_the_same_leave_it_too(host: BenchHost, box: Box, tmp_path: Path) -> None:
    tune = asked(tmp_path / "box.tuned.toml", rounds=1)
    done(tune, host)
    before, measured = in_(tmp_path), len(ran(box))
    done(asked(tune.file, rounds=3, overwrite=True), host)
    assert len(ran(box)) > measured
    assert in_(tmp_path) == before


def test_one_that_was_measured_with_another_release_is_made_anew_only_if_that_is_wished(
    host: BenchHost, tmp_path: Path
) -> None:
    """Serve says of such a file that it should be tuned again."""
    tune = asked(tmp_path / "box.tuned.toml")
    done(tune, host)
    new = tune.file.read_text()
    old = new.replace('release = "r1"', 'release = "r0"')
    tune.file.write_text(old)
    [step] = writing(tune, inventory(), host).steps
    assert (step.needed, "--overwrite says when it was now" in step.reason) == (False, True)
    done(replace(tune, overwrite=True), host)
    assert in_(tmp_path) == {"box.tuned.toml": new, "box.tuned.toml.before": old}


# Writing.


def test_no_file_that_was_ever_replaced_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.tuned.toml"
    for text in ("by hand", "first", "second", "third"):
        file.write(path, text, Recorder())
    assert in_(tmp_path) == {
        "a.tuned.toml": "third",
        "a.tuned.toml.before": "by hand",
        "a.tuned.toml.before-2": "first",
        "a.tuned.toml.before-3": "second",
    }


@pytest.mark.parametrize("cut_at", [1, 2])
def test_however_it_is_cut_a_whole_file_is_under_its_name(
    cut_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, whole, renames = tmp_path / "a.tuned.toml", Path.replace, list[Path]()
    path.write_text("old")

    def replaced(part: Path, to: Path) -> Path:
        renames.append(to)
        if len(renames) == cut_at:
            raise KeyboardInterrupt
        return whole(part, to)

    monkeypatch.setattr(Path, "replace", replaced)
    with pytest.raises(KeyboardInterrupt):
        file.write(path, "new", Recorder())
    assert in_(tmp_path) == {"a.tuned.toml": "old"} | ({"a.tuned.toml.before": "old"} if cut_at == 2 else {})
    file.write(path, "new", Recorder())
    assert in_(tmp_path) == {"a.tuned.toml": "new", "a.tuned.toml.before": "old"}


# Several hosts.


def test_of_two_that_write_one_file_at_the_same_time_neither_writes_into_what_the_other_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, whole, numbers = tmp_path / "a.tuned.toml", Path.replace, iter((1, 2))
    monkeypatch.setattr(os, "getpid", lambda: next(numbers))

    def replaced(part: Path, to: Path) -> Path:
        monkeypatch.setattr(Path, "replace", whole)
        file.write(to, "the other's", Recorder())
        return whole(part, to)

    monkeypatch.setattr(Path, "replace", replaced)
    file.write(path, "this one's", Recorder())
    assert in_(tmp_path) == {"a.tuned.toml": "this one's"}


def test_several_hosts_have_a_file_each(call: Caller, named: Path, tmp_path: Path) -> None:
    made = call.json("tune", named, *WORDS, "--file", tmp_path / "of-{host}.toml")
    assert made.tune is not None
    assert Path(made.tune.file) == tmp_path / "of-staging.toml"
    assert tuned.read(tmp_path / "of-staging.toml").host == "staging"
