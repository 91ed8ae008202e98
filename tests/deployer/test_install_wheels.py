"""Wheels built on the laptop, and the wheelhouse: reproducible, checked by hash, continued after an interruption."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from deployer.errors import InstallError
from deployer.install import wheelhouse
from deployer.install.ext_wheel import build_wheel, ext_source, source_digest
from deployer.install.lockfile import Lock, Pin, sha256, wheel_identity
from deployer.install.source import project_path

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "tiny-thing"
version = "1.2"
[tool.setuptools]
py-modules = ["tiny_thing"]
"""


def write_package(parent: Path) -> Path:
    source = parent / "tiny_thing"
    source.mkdir()
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "tiny_thing.py").write_text("ANSWER = 42\n")
    return source


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_package(tmp_path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(write_package(tmp_path_factory.mktemp("shared")), tmp_path_factory.mktemp("cache"))


def test_the_same_sources_give_the_same_bytes_whatever_their_times_and_modes(package: Path, tmp_path: Path) -> None:
    first = build_wheel(package, tmp_path / "one")
    os.utime(package / "tiny_thing.py", (2_000_000_000, 2_000_000_000))
    (package / "tiny_thing.py").chmod(0o600)
    second = build_wheel(package, tmp_path / "two")
    assert first.name == "tiny_thing-1.2-py3-none-any.whl"
    assert first.read_bytes() == second.read_bytes()


def test_a_wheel_is_built_once_and_anew_when_a_source_changes(package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = build_wheel(package, cache)
    stamp = first.stat().st_mtime_ns
    assert build_wheel(package, cache).stat().st_mtime_ns == stamp
    (package / "tiny_thing.py").write_text("ANSWER = 43\n")
    assert sha256(build_wheel(package, cache)) != sha256(first)


def test_building_leaves_the_source_folder_as_it_was(package: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in package.rglob("*"))
    build_wheel(package, tmp_path / "cache")
    assert sorted(path.name for path in package.rglob("*")) == before


def test_caches_and_build_leftovers_do_not_change_a_wheels_identity(package: Path) -> None:
    before = source_digest(package)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "tiny_thing.cpython-311.pyc").write_bytes(b"x")
    (package / "tiny_thing.egg-info").mkdir()
    assert source_digest(package) == before


def test_the_extensions_wheel_carries_the_plugins_entry_point(tmp_path: Path) -> None:
    wheel = build_wheel(ext_source(), tmp_path / "cache")
    assert wheel_identity(wheel.name)[0] == "ddtree-ext"
    with zipfile.ZipFile(wheel) as archive:
        entry = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "ddtree = ddtree_ext.plugin:register" in archive.read(entry).decode()


def test_the_extensions_wheel_carries_the_projects_licence(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(ext_source(), tmp_path / "cache")) as wheel:
        (licence,) = (name for name in wheel.namelist() if name.endswith("dist-info/licenses/LICENSE"))
        assert wheel.read(licence) == project_path("LICENSE").read_bytes()


def test_a_folder_without_a_pyproject_is_named(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match=r"pyproject\.toml"):
        build_wheel(tmp_path, tmp_path / "cache")


def locked(wheel: Path) -> Lock:
    return Lock((Pin(*wheel_identity(wheel.name), (sha256(wheel),)),))


def test_a_wheel_with_other_bytes_under_the_right_name_is_missing(wheel: Path, tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / wheel.name).write_bytes(wheel.read_bytes()[:-1])
    assert wheelhouse.look(locked(wheel), house).missing == locked(wheel).pins
    (house / wheel.name).write_bytes(wheel.read_bytes())
    assert wheelhouse.look(locked(wheel), house) == wheelhouse.Found((house / wheel.name,), ())


def test_filling_takes_what_pip_is_configured_with_and_is_done_once(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, said = tmp_path / "house", []
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert wheelhouse.fill(locked(wheel), house, "3.11", said.append).wheels == (house / wheel.name,)
    assert said == ["downloading 1 of 1 wheels"]
    wheelhouse.fill(locked(wheel), house, "3.11", said.append)
    assert len(said) == 1
    assert [path.name for path in house.iterdir()] == [wheel.name]


def test_wrong_bytes_from_the_index_are_refused(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Lock((Pin(*wheel_identity(wheel.name), ("0" * 64,)),))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    with pytest.raises(InstallError, match="SHA-256 differs"):
        wheelhouse.fill(lock, tmp_path / "house", "3.11", lambda line: None)


def test_pytorch_that_no_index_offers_is_one_clear_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)  # a constraint of this machine would be another reason to refuse
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(InstallError) as caught:
        wheelhouse.fill(Lock((Pin("torch", "2.13.0+cpu", ("0" * 64,)),)), tmp_path / "house", "3.11", lambda line: None)
    assert caught.value.what.startswith("PyTorch's CPU build, torch==2.13.0+cpu, is offered by no index")
    assert "\n" not in caught.value.what
    assert subprocess.run(["ls", "-A", str(tmp_path / "house")], capture_output=True, check=True).stdout == b""
