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
