"""Releases: named after their content, built at their final path, switched in one rename, proved before that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deployer.errors import InstallError
from deployer.install import release as commands
from deployer.install.ext_wheel import build_wheel
from deployer.install.lockfile import Lock, Pin, sha256
from deployer.install.release import Folder, LocalWheel, Release
from deployer.install.verify import judge, scratch_command

LOCK = Lock((Pin("torch", "2.13.0+cpu", ("a" * 64,)),))
WHEEL = LocalWheel(Path("ddtree_ext-0.1.0-py3-none-any.whl"), "b" * 64)
RELEASE = Release("cpu", "3.11", LOCK, (WHEEL,))


def test_equal_content_is_the_same_release_in_whatever_order_the_wheels_come() -> None:
    other = LocalWheel(Path("vllm-0.32.0-py3-none-any.whl"), "c" * 64)
    one, two = replace(RELEASE, wheels=(WHEEL, other)), replace(RELEASE, wheels=(other, WHEEL))
    assert one.identifier == two.identifier
    assert one.identifier.startswith("cpu-")


@pytest.mark.parametrize(
    "changed",
    [
        replace(RELEASE, python="3.12"),
        replace(RELEASE, build="cuda"),
        replace(RELEASE, lock=Lock((Pin("torch", "2.13.0+cpu", ("d" * 64,)),))),
        replace(RELEASE, wheels=(replace(WHEEL, sha256="e" * 64),)),
    ],
)
def test_anything_that_changes_the_engine_changes_its_name(changed: Release) -> None:
    assert changed.identifier != RELEASE.identifier


def test_the_manifest_says_what_is_inside() -> None:
    about = json.loads(RELEASE.manifest())
    assert about["torch"] == "2.13.0+cpu"
    assert about["wheels"] == {WHEEL.path.name: WHEEL.sha256}


def test_old_releases_go_but_never_one_that_is_needed() -> None:
    finished = ("e", "d", "c", "b", "a")
    assert commands.superfluous(finished, 2, frozenset({"a"})) == ("c", "b")
    assert commands.superfluous(finished, 9, frozenset()) == ()


def sh(command: str) -> str:
    return subprocess.run(["/bin/sh", "-c", command], text=True, capture_output=True, check=True).stdout


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    source = tmp_path / "tiny"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "tiny"\nversion = "1"\n[project.scripts]\ntiny = "tiny:main"\n'
        '[tool.setuptools]\npy-modules = ["tiny"]\n'
    )
    (source / "tiny.py").write_text("def main():\n    print('forty-two')\n")
    return build_wheel(source, tmp_path / "cache")


def test_the_commands_make_an_offline_venv_of_the_locked_bytes_and_count_it_only_when_finished(
    tmp_path: Path, wheel: Path
) -> None:
    releases = tmp_path / "releases"
    folder = Folder(f"{releases}/r1")
    sh(commands.begin_command(folder))
    lock = tmp_path / "lock.txt"
    lock.write_text(f"tiny==1 --hash=sha256:{sha256(wheel)}\n")
    sh(commands.venv_command(folder, sys.executable))
    other = tmp_path / "other.txt"
    other.write_text(f"tiny==1 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        sh(commands.pip_command(folder, str(other), str(wheel.parent)))
    assert "DO NOT MATCH" in caught.value.stderr
    sh(commands.pip_command(folder, str(lock), str(wheel.parent)))
    sh(commands.compile_command(folder))
    assert subprocess.check_output([f"{folder.venv}/bin/tiny"], text=True) == "forty-two\n"
    assert list(Path(folder.venv).glob("lib/*/site-packages/__pycache__/tiny*.pyc"))
    Path(folder.manifest).write_text("{}")
    assert sh(commands.complete_command(str(releases))) == ""
    sh(commands.finish_command(folder))
    assert sh(commands.complete_command(str(releases))) == "r1\n"


def test_current_moves_in_one_rename_and_an_absent_folder_of_releases_is_none(tmp_path: Path) -> None:
    current = tmp_path / "current"
    for name in ("one", "two"):
        sh(commands.activate_command(Folder(f"{tmp_path}/{name}"), str(current)))
        assert current.readlink() == tmp_path / name
    assert sorted(os.listdir(tmp_path)) == ["current"]
    assert sh(commands.complete_command(f"{tmp_path}/none")) == ""


GOOD = {"vllm": "0.32.0", "torch": "2.13.0+cpu", "cuda": None, "ext": "0.1.0", "plugins": ["ddtree"], "help": True}


def judged(**changes: object) -> object:
    return judge("INFO noise\n" + json.dumps({**GOOD, **changes}), "cpu", "0.1.0", "host:/r1")


def test_a_sound_release_passes() -> None:
    assert judged() == judge(json.dumps(GOOD), "cpu", "0.1.0", "elsewhere")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vllm": "0.31.0"}, "vLLM 0.31.0"),
        ({"cuda": "13.0"}, "asks for cpu"),
        ({"plugins": ["other"]}, "would not find the plugin ddtree; it finds other"),
        ({"ext": "0.0.9"}, "ddtree-ext 0.0.9"),
        ({"help": False}, "serve --help"),
        ({"error": "ImportError: libnuma.so.1: cannot open shared object file"}, "does not load"),
    ],
)
def test_what_is_wrong_with_a_release_is_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InstallError, match=said):
        judged(**changes)


def test_a_missing_libnuma_names_the_package() -> None:
    with pytest.raises(InstallError) as caught:
        judged(error="ImportError: libnuma.so.1: cannot open shared object file")
    assert "libnuma1" in caught.value.remedy


def test_what_a_check_writes_goes_with_it() -> None:
    script = "import os, tempfile; print(os.environ['HOME']); print(tempfile.mkdtemp())"
    done = subprocess.run(
        ["/bin/sh", "-c", scratch_command(sys.executable, "")], input=script, text=True, capture_output=True, check=True
    )
    home, made = done.stdout.split()
    assert made.startswith(home)
    assert not Path(home).exists()


def test_what_a_broken_line_left_running_in_a_release_ends_before_the_next_command_begins(tmp_path: Path) -> None:
    folder, log = Folder(str(tmp_path)), tmp_path / "log"
    Path(folder.incomplete).touch()
    left = f"echo begun; sleep 0.5; echo first >>{log}"
    with subprocess.Popen(
        ["/bin/sh", "-c", commands.alone_command(folder, left)], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        subprocess.run(["/bin/sh", "-c", commands.alone_command(folder, f"echo second >>{log}")], check=True)
    assert log.read_text() == "first\nsecond\n"
