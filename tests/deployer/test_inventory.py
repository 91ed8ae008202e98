"""Inventory files: where they are found, how their paths resolve, and how mistakes in them are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployer.errors import Exit, UsageError
from deployer.inventory.load import load, names

MINIMAL = """
name = "box"
[ssh]
host = "box"
[drafter]
file = "drafter.safetensors"
profile = "z-lab/Qwen3.6-27B-DFlash"
[target]
path = "/models/target"
[install]
build = "cuda"
[serve]
served_model_name = "m"
"""


def write(folder: Path, text: str, name: str = "box.toml") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return str(path)


def test_the_bundled_inventories_load_with_absolute_laptop_paths() -> None:
    production, staging = load("ct129"), load("staging")
    assert (production.ssh.host, production.ssh.jump) == ("ct129", "kpro5")
    assert production.serve.options["tensor-parallel-size"] == 2
    assert str(production.drafter.file) == "/tmp/dflash-q36-27b.safetensors"
    assert staging.drafter.file.is_absolute()
    assert staging.drafter.file.parts[-5:] == ("build", "pairs", "hybrid", "drafter", "model.safetensors")
    assert Path(staging.drafter.profile).is_file()


def test_relative_paths_start_at_the_files_own_folder(tmp_path: Path) -> None:
    assert load(write(tmp_path, MINIMAL)).drafter.file == tmp_path / "drafter.safetensors"


def test_a_name_is_looked_for_in_cwd_then_in_the_named_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "elsewhere", MINIMAL.replace('"m"', '"from-variable"'))
    monkeypatch.setenv("DDTREE_INVENTORY", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    assert load("box").serve.served_model_name == "from-variable"
    write(tmp_path / "inventory", MINIMAL.replace('"m"', '"from-cwd"'))
    assert load("box").serve.served_model_name == "from-cwd"
    assert {"box", "ct129", "staging"} <= names().keys()


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("[install]", "[install]\nwheelhose = 'w'", ["install.wheelhose", "did you mean wheelhouse?"]),
        ("[install]", "[instal]", ["unknown key instal", "did you mean install?", "install is missing"]),
        ('build = "cuda"', 'build = "rocm"', ["install.build", "'cpu' or 'cuda'"]),
        ('path = "/models/target"', 'path = "models/target"', ["target.path"]),
        ('path = "/models/target"', 'path = "/models/$(reboot)"', ["target.path"]),
        ('path = "/models/target"', 'path = "/models/../etc"', ["target.path"]),
        ('host = "box"', 'host = "-oProxyCommand=id"', ["ssh.host"]),
        ("[ssh]", 'service = "a b"\n[ssh]', ["service"]),
        ("[ssh]", "[tree]\nbudget = 64\n[ssh]", ["tree.budget", "63"]),
        ("[ssh]", "[ssh", ["not valid TOML", "line"]),
    ],
)
def test_a_mistake_names_file_key_and_remedy(tmp_path: Path, old: str, new: str, named: list[str]) -> None:
    path = write(tmp_path, MINIMAL.replace(old, new))
    with pytest.raises(UsageError) as caught:
        load(path)
    assert caught.value.exit_code == Exit.USAGE
    for part in [path, *named]:
        assert part in str(caught.value)


VALUES = {
    "serve.port": ["true", "'8000'", "8000.0", "0"],
    "serve.gate_timeout": ["inf", "nan", "true", "'60'", "0"],
    "serve.min_acceptance_length": ["nan", "inf"],
    "checks.gpus": ["true", "2.0"],
    "checks.min_free_gib": ["nan", "inf", "-1", "true"],
    "checks.gpu_memory_gib": ["nan", "0"],
    "checks.min_driver": ["'abc'", "''", "'580.'", "'580; reboot'", "580"],
    "install.python": [
        "'python3; rm -rf /'",
        "'python3 -I'",
        "''",
        "'-c'",
        "'venv/bin/python'",
        "'/usr/../bin/python'",
    ],
    "install.keep": ["true"],
    "tree.enabled": ["1", "'yes'"],
    "tree.budget": ["true", "31.0"],
    "tree.table": ["[[1, 2, true]]"],
    "bench.concurrency": ["true", "[1, '2']", "[0]"],
    "bench.chain_tokens": ["0", "true"],
    "notify.timeout": ["inf"],
    "ssh.connect_timeout": ["inf", "true"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in VALUES.items() for value in values])
def test_a_value_that_means_nothing_is_one_error_that_names_its_key(tmp_path: Path, key: str, value: str) -> None:
    section, _, name = key.partition(".")
    text = MINIMAL if f"[{section}]" in MINIMAL else f"{MINIMAL}\n[{section}]\n"
    path = write(tmp_path, text.replace(f"[{section}]\n", f"[{section}]\n{name} = {value}\n"))
    with pytest.raises(UsageError) as caught:
        load(path)
    assert caught.value.what.startswith(key)
    assert ";" not in caught.value.what
    assert "Value error" not in caught.value.what


@pytest.mark.parametrize("python", ["python3", "python3.12", "/usr/bin/python3", "/opt/pythons/3.12.1/bin/python"])
def test_the_hosts_python_is_a_name_or_a_path(tmp_path: Path, python: str) -> None:
    path = write(tmp_path, MINIMAL.replace("[install]", f"[install]\npython = '{python}'"))
    assert load(path).install.python == python


@pytest.mark.parametrize("value", ["nan", "{ b = inf }", "{ b = [{ c = nan }] }", "{ b = 2026-01-01 }"])
def test_an_option_that_cannot_be_handed_on_is_named(tmp_path: Path, value: str) -> None:
    with pytest.raises(UsageError, match=r"options\.a has a value that cannot be handed on"):
        load(write(tmp_path, f"{MINIMAL}options = {{ a = {value} }}\n"))


def test_numbers_need_no_dot(tmp_path: Path) -> None:
    path = write(tmp_path, f"{MINIMAL}gate_timeout = 60\noptions = {{ a = 0.9, b = 1, c = true }}\n")
    serve = load(path).serve
    assert (serve.gate_timeout, serve.options) == (60.0, {"a": 0.9, "b": 1, "c": True})


def test_brackets_without_end_are_an_error_and_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="brackets lie in brackets"):
        load(write(tmp_path, f"x = {'[' * 5000}{']' * 5000}\n{MINIMAL}"))


def test_a_file_that_is_no_text_is_to_be_written_in_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "box.toml"
    path.write_bytes(MINIMAL.replace('"m"', '"é"').encode("latin-1"))
    with pytest.raises(UsageError, match="it is not text") as caught:
        load(str(path))
    assert caught.value.remedy == "write the file in UTF-8"


@pytest.mark.parametrize(
    "origin",
    ["", 'file = "drafter.safetensors"\nhub = { repo = "owner/Drafter" }'],
    ids=["neither", "both"],
)
def test_a_drafter_comes_from_one_place(tmp_path: Path, origin: str) -> None:
    one = MINIMAL.replace('file = "drafter.safetensors"', 'hub = { repo = "owner/Drafter", revision = "v1" }')
    found = load(write(tmp_path, one)).drafter
    assert (found.file, found.hub and found.hub.repo) == (None, "owner/Drafter")
    with pytest.raises(UsageError, match=r"drafter: .*say exactly one of file and hub") as caught:
        load(write(tmp_path, MINIMAL.replace('file = "drafter.safetensors"', origin)))
    assert caught.value.remedy == "correct drafter"


def test_an_unknown_host_gets_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="did you mean staging"):
        load("stagin")
    with pytest.raises(UsageError, match="no such inventory file"):
        load("./nothing.toml")
