"""What an inventory alone shows to be wrong is said before its host is asked anything; no host was changed then."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import planted
import pytest
from bench_host import inventory
from calling import Caller, write_inventory
from material import REPOSITORY
from pydantic import ValidationError

from deployer.cli import doctor, host
from deployer.errors import Exit, PreflightError, UsageError
from deployer.inventory.load import load
from deployer.inventory.model import TreeOptions
from deployer.serve import sound

UNSET = "DDTREE_NO_SUCH_VARIABLE"
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a budget below the drafter's width": ({"tree": {"budget": 6}}, "below the drafter's width 7"),
    "no file that was tuned": ({"tree": {"tuned": "missing.toml"}}, "[tree] tuned names is not there"),
    "no text in the file that was tuned": ({"tree": {"tuned": "noise.toml"}}, "it is not text"),
    "a table of more requests than a step takes": (
        {"tree": {"budget": 15, "table": [[1, 9, 15]]}, "serve": {"options": {"max-num-seqs": 8}}},
        "[tree] table goes to 9 requests",
    ),
    "an option that is decided here": ({"serve": {"options": {"port": 1}}}, "must not set port"),
    "an attention that a tree has not": (
        {"serve": {"options": {"attention-backend": "FLASH_ATTN"}}},
        "must not set attention-backend: it comes from [tree]",
    ),
    "a step of no requests": ({"serve": {"options": {"max-num-seqs": 0}}}, "max-num-seqs is 0"),
    "a drain that is no number": ({"serve": {"options": {"shutdown-timeout": "soon"}}}, "shutdown-timeout is 'soon'"),
    "no name of a variable": ({"serve": {"environment": {"A-B": "1"}}}, "A-B is no name of a variable"),
    "two lines in a variable": ({"serve": {"environment": {"A": "1\n2"}}}, "A has more than one line"),
    "more ranks than nodes": ({"tree": {"options": {"topk": 99}}}, "tree.options.topk"),
    "an option that no engine has": ({"tree": {"options": {"foo": 1}}}, "unknown key tree.options.foo"),
}
MISSING: dict[str, tuple[dict[str, Any], str]] = {
    "a variable that is not set": ({"VLLM_API_KEY": {"env": UNSET}}, f"${UNSET}, which is not set"),
    "a file that is not there": ({"VLLM_API_KEY": {"file": "no-key"}}, "No such file"),
}


class Asked(Exception):
    """The host would have been asked."""


def away(*_: object, **__: object) -> None:
    """In place of the way to a host."""
    raise PreflightError("it is away", where="the box", remedy="switch it on")


@pytest.fixture(autouse=True)
def _no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object, **__: object) -> None:
        raise Asked

    monkeypatch.setattr(host, "opened", opened)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


def written(folder: Path, changes: dict[str, dict[str, Any]]) -> Path:
    """A box's file with other values in some sections; beside it noise.toml, which is no text."""
    (folder / "noise.toml").write_bytes(b"\xc9\x00\xff")
    data = inventory().model_dump(mode="json", exclude_none=True)
    data["serve"]["secrets"] = {}
    changed = {section: {**data[section], **values} for section, values in changes.items()}
    return write_inventory(inventory(), folder / "box.toml", **{"serve": data["serve"], **changed})


@pytest.mark.parametrize("verb", ["inventory validate", "check", "up", "serve"])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_serve_would_refuse_is_a_usage_error_of_every_verb_on_the_way_to_it(
    wrong: str, verb: str, tmp_path: Path, call: Caller
) -> None:
    changes, says = WRONG[wrong]
    called = call(*verb.split(), written(tmp_path, changes))
    assert called.code == Exit.USAGE
    assert says in called.stderr


@pytest.mark.parametrize("verb", ["check", "up", "serve", "bench", "tune"])
@pytest.mark.parametrize("wrong", MISSING)
def test_a_secret_that_is_not_on_this_machine_is_found_before_the_host_is_asked(
    wrong: str, verb: str, tmp_path: Path, call: Caller
) -> None:
    secrets, says = MISSING[wrong]
    called = call(verb, written(tmp_path, {"serve": {"served_model_name": "m", "secrets": secrets}}))
    assert called.code == Exit.USAGE
    assert says in called.stderr


@pytest.mark.parametrize("wrong", WRONG)
def test_doctor_finds_it_on_this_machine_and_goes_on_to_the_box(
    wrong: str, tmp_path: Path, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "opened", away)
    changes, says = WRONG[wrong]
    called = call("--local", "doctor", written(tmp_path, changes))
    said = " ".join(called.stdout.split())
    loaded = "it is away" in said  # what no file may say at all ends before there is anything to look at
    assert called.code == (Exit.PREFLIGHT if loaded else Exit.USAGE)
    assert says in (said if loaded else called.stderr)


def test_doctor_finds_a_missing_secret_which_push_and_install_do_not_need(
    tmp_path: Path, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "opened", away)
    serve = {"served_model_name": "m", "secrets": {"VLLM_API_KEY": {"env": UNSET}}}
    path = written(tmp_path, {"serve": serve})
    assert f"${UNSET}" in " ".join(call("--local", "doctor", path).stdout.split())
    for verb in ("push", "install"):
        assert "Asked" in call(verb, path).stderr, verb


def test_who_validates_a_file_need_not_have_its_secrets_and_their_names_are_looked_at(
    tmp_path: Path, call: Caller
) -> None:
    serve = {"served_model_name": "m", "secrets": {"VLLM_API_KEY": {"env": UNSET}}}
    assert call("inventory", "validate", written(tmp_path, {"serve": serve})).code == Exit.OK
    serve["secrets"] = {"A-B": {"env": UNSET}}
    assert "A-B is no name" in call("inventory", "validate", written(tmp_path, {"serve": serve})).stderr


def test_a_sound_one_is_refused_by_none_and_its_host_is_asked(tmp_path: Path, call: Caller) -> None:
    path = written(tmp_path, {})
    assert call("inventory", "validate", path).code == Exit.OK
    for verb in ("check", "up", "serve", "bench", "tune"):
        called = call(verb, path)
        assert called.code == Exit.UNEXPECTED
        assert "Asked" in called.stderr, verb


def test_tune_makes_the_file_that_is_missing_and_bench_measures_named_arms_without_it(
    tmp_path: Path, call: Caller
) -> None:
    path = written(tmp_path, {"tree": {"tuned": "missing.toml"}})
    assert call("bench", path).code == Exit.USAGE
    for words in (("tune", path), ("bench", path, "--arms", "ar,chain:3")):
        assert "Asked" in call(*words).stderr


@pytest.mark.parametrize("name", ["ct129", "staging"])
def test_the_bundled_inventories_are_sound(name: str) -> None:
    sound.service(load(name), secrets=False)


@pytest.mark.parametrize("key", ["api-key", "api_key", "--api-key", "hf-token"])
@pytest.mark.parametrize("verb", ["show", "validate"])
def test_a_secret_in_an_option_is_refused_by_everything_that_reads_the_file_and_never_shown(
    key: str, verb: str, tmp_path: Path, call: Caller
) -> None:
    path = written(tmp_path, {"serve": {"served_model_name": "m", "options": {key: planted.SECRET}}})
    for words in (("inventory", verb, path), ("inventory", verb, path, "--json")):
        called = call(*words)  # which looks for the secret in what was printed
        assert called.code == Exit.USAGE
        assert "[serve.secrets]" in called.stdout + called.stderr
    path.unlink()  # nothing else that a test leaves may hold the secret


@pytest.mark.parametrize("topk", [0, 1, 16, 63, 64, True, "16", 2.0])
def test_deployer_and_engine_take_and_refuse_the_same_ranks(topk: object) -> None:
    engine = runpy.run_path(str(REPOSITORY / "ddtree_ext/engine/options.py"))  # it imports no torch
    config = SimpleNamespace(additional_config={"ddtree": {"topk": topk}})
    try:
        taken = engine["DDTreeOptions"].from_config(config).topk
    except engine["OptionError"]:
        with pytest.raises(ValidationError):
            TreeOptions.model_validate({"topk": topk})
    else:
        assert TreeOptions.model_validate({"topk": topk}).topk == taken


def test_deployer_and_engine_know_the_same_options() -> None:
    engine = runpy.run_path(str(REPOSITORY / "ddtree_ext/engine/options.py"))
    assert set(TreeOptions.model_fields) == set(engine["DDTreeOptions"].__dataclass_fields__)


def test_no_more_nodes_than_the_engine_has_room_for() -> None:
    most = runpy.run_path(str(REPOSITORY / "ddtree_ext/engine/options.py"))["MAX_BUDGET"]
    assert inventory(tree={"budget": most}).tree.budget == most
    with pytest.raises((ValidationError, UsageError)):
        inventory(tree={"budget": most + 1})
