"""Secrets: named in the inventory, read on the laptop, written into one file on the host, and seen nowhere else."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import planted
import pytest
from material import inventory_for

from deployer.errors import UsageError
from deployer.inventory.load import parse
from deployer.inventory.model import SecretSource
from deployer.inventory.secret import Secret
from deployer.plan.layout import Layout
from deployer.serve import decoding
from deployer.serve.records import Record, Records
from deployer.serve.render import Engine, Place, local_secrets, render
from deployer.transport.local import LocalTransport

TEXT = "s3cret-value"


@dataclass(frozen=True)
class Holder:
    """Something that has a secret among its fields."""

    name: str
    key: Secret


@pytest.mark.parametrize("shown", [str, repr, "{}".format, "{!r}".format, "%s".__mod__])
def test_a_secret_shows_itself_to_nobody(shown: Callable[[object], str]) -> None:
    assert TEXT not in shown(Secret(TEXT))
    assert TEXT not in shown(Holder("a", Secret(TEXT)))
    assert TEXT not in shown([Secret(TEXT)])
    assert Secret(TEXT).reveal() == TEXT


def serialised(secret: Secret) -> object:
    return pickle.dumps(secret)


def copied(secret: Secret) -> object:
    return copy.deepcopy(Holder("a", secret))


def as_json(secret: Secret) -> object:
    return json.dumps({"key": secret})


def in_an_argv(secret: Secret) -> object:
    return subprocess.run(["/bin/true", secret], check=False)  # type: ignore[list-item]


def joined(secret: Secret) -> object:
    return "key=" + secret  # type: ignore[operator]


@pytest.mark.parametrize("use", [serialised, copied, as_json, in_an_argv, joined])
def test_a_secret_is_no_text_that_slips_through(use: Callable[[Secret], object]) -> None:
    with pytest.raises(TypeError) as caught:
        use(Secret(TEXT))
    assert TEXT not in str(caught.value)


def test_a_traceback_that_shows_local_variables_does_not_show_it() -> None:
    def fails(key: Secret) -> None:
        raise ValueError(f"wrong key {key}")

    with pytest.raises(ValueError, match="not shown") as caught:
        fails(Secret(TEXT))
    shown = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert "key = Secret(not shown)" in shown


def test_a_secret_is_read_from_a_file_or_from_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "api-key"
    file.touch(mode=0o600)
    file.write_text(f"{TEXT}\n")
    assert SecretSource(file=file).read("key", {}).reveal() == TEXT
    assert SecretSource(env="KEY").read("key", {"KEY": TEXT}).reveal() == TEXT


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (None, 0o600, "No such file"),
        (TEXT, 0o644, "others than you can read its file (mode 0644)"),
        (TEXT, 0o640, "chmod 600"),
        ("", 0o600, "empty"),
        (f"{TEXT}\nsecond", 0o600, "more than one line"),
        (b"\xff\xfe\x00", 0o600, "not text"),
    ],
)
def test_a_file_that_is_no_secret_is_named_without_its_content(
    tmp_path: Path, content: str | bytes | None, mode: int, said: str
) -> None:
    file = tmp_path / "api-key"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        file.chmod(mode)
    with pytest.raises(UsageError) as caught:
        SecretSource(file=file).read("[serve.secrets] VLLM_API_KEY", {})
    assert said in str(caught.value)
    assert "[serve.secrets] VLLM_API_KEY" in str(caught.value)
    assert str(file) in str(caught.value)
    assert TEXT not in str(caught.value)


def test_a_variable_that_is_not_set_here_is_named() -> None:
    with pytest.raises(UsageError, match=r"\$DEPLOY_KEY, which is not set"):
        SecretSource(env="DEPLOY_KEY").read("[serve.secrets] VLLM_API_KEY", {})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (f'[serve.secrets]\nVLLM_API_KEY = "{TEXT}"', "serve.secrets.VLLM_API_KEY"),
        ("[serve.secrets]\nVLLM_API_KEY = {}", "say either file or env"),
        ('[serve.secrets]\nVLLM_API_KEY = { env = "A", file = "b" }', "say either file or env"),
        (f'[serve.secrets]\nVLLM_API_KEY = {{ env = "{TEXT}" }}', "serve.secrets.VLLM_API_KEY.env"),
        ('[serve.secrets]\nVLLM_API_KEY = { flie = "a" }', "did you mean file?"),
        (f'[serve.environment]\nVLLM_API_KEY = "{TEXT}"', "use [serve.secrets] VLLM_API_KEY"),
        (f'[serve.environment]\nHF_TOKEN = "{TEXT}"', "use [serve.secrets] HF_TOKEN"),
        ('[serve.environment]\nX = "$HOME"', "use [serve.secrets] X"),
        ('[serve.environment]\nX = "a"\n[serve.secrets]\nX = { env = "A" }', "X is in both"),
    ],
)
def test_a_secret_written_out_is_refused_without_repeating_it(tmp_path: Path, table: str, said: str) -> None:
    text = (
        'name = "box"\n[ssh]\nhost = "box"\n[drafter]\nfile = "d"\nprofile = "p"\n[target]\npath = "/t"\n'
        f'[install]\nbuild = "cpu"\n[serve]\nserved_model_name = "m"\n{table}\n'
    )
    with pytest.raises(UsageError) as caught:
        parse(text, tmp_path / "box.toml")
    assert said in str(caught.value)
    assert TEXT not in str(caught.value)


def test_names_that_only_look_like_one_are_no_secrets(tmp_path: Path, drafter: Path) -> None:
    data = inventory_for(tmp_path, drafter).model_dump()
    data["serve"]["environment"] = {"TOKENIZERS_PARALLELISM": "false", "VLLM_KEYBOARD": "x"}
    assert type(inventory_for(tmp_path, drafter)).model_validate(data)


def test_on_the_host_it_is_in_files_that_only_their_owner_reads(tmp_path: Path, drafter: Path) -> None:
    """A deployment saved for real. After every test of this room everything it wrote is searched; here it is found."""
    inventory, local = inventory_for(tmp_path, drafter), LocalTransport()
    engine = Engine("/venv", "/target", "/drafter", decoding.served(inventory))
    files = render(inventory, Place.of_service(inventory), engine, (), local_secrets(inventory))
    record = Record.new("r1", files, "tree", None)
    Records(local, Layout.of(inventory)).save(record, files, None)
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and planted.SECRET in path.read_text("latin-1")]
    assert [(path.name, path.stat().st_mode & 0o777) for path in holding] == [("environment", 0o600)]
    assert planted.leaks(tmp_path) == []


def test_the_watch_over_files_sees_what_it_is_there_for(tmp_path: Path) -> None:
    report, key = tmp_path / "report.json", tmp_path / "api-key"
    report.write_text(json.dumps({"key": planted.SECRET}))
    key.touch(mode=0o644)
    key.write_text(planted.SECRET)
    assert set(planted.leaks(tmp_path)) == {str(report), f"{key} (mode 0644)"}
    report.unlink()
    key.unlink()


def test_the_watch_over_command_lines_sees_what_it_is_there_for() -> None:
    subprocess.run(["/bin/true", f"--key={planted.SECRET}"], check=True)
    LocalTransport().run(f"true {planted.SECRET}")
    assert len(planted.argv_leaks) == 2
    planted.argv_leaks.clear()
