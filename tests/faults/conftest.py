"""A staging box whose /opt/ddtree has a disk of its own, and two deployments on it that have proved themselves."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disk import give_own_disk
from tests.faults.scene import REPOSITORY, Deployment, Scene, staging
from tests.faults.table import pytest_terminal_summary
from tests.faults.tool import Tool
from tests.lab.box import Lab
from tests.lab.fixture import lab_beside

__all__ = ["pytest_terminal_summary", "scene"]
_FIRST = 1200.0  # seconds for a whole first deployment on a loaded machine


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    lab = lab_beside("faults")
    lab.up(afresh=True)
    try:
        folder = tmp_path_factory.mktemp("faults")
        give_own_disk(lab, lab.place.run / "ddtree.img")
        made = Scene(lab, deployments(lab, folder))
        for deployment in reversed(made.deployments):
            ended = Tool("up", deployment.inventory).ended(_FIRST)
            assert ended.code == 0, ended.output[-6000:]
        if os.environ.get("FAULTS_QUICK"):
            made.put_stand_in_engine()
        yield made
    finally:
        lab.down()


def deployments(lab: Lab, folder: Path) -> tuple[Deployment, Deployment]:
    """Two that differ in everything: drafter, release and how they decode."""
    drafter = REPOSITORY / "build/pairs/hybrid/drafter/model.safetensors"
    other, package = another_drafter(drafter, folder / "other.safetensors"), another_package(folder / "other-package")
    packages = [
        str(REPOSITORY / "tests/engine_cpu" / name) for name in ("vllm_stub", "vllm_cpu_shim", "fake_triton_cpu")
    ]
    changes = {
        "file": f'"{other}"',
        "local_packages": json.dumps([*packages, str(package)]),
        "budget": "15\nenabled = false",
    }
    tree = Deployment(staging(lab, folder / "tree.toml"), "tree", drafter)
    return tree, Deployment(staging(lab, folder / "chain.toml", **changes), "chain", other)


def another_drafter(drafter: Path, path: Path) -> Path:
    """The same weights in another file: its header has a long remark more, so that the file is one that rsync sends."""
    data = drafter.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = {**header.get("__metadata__", {}), "remark": random.Random(1).randbytes(5 << 20).hex()}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return path


def another_package(folder: Path) -> Path:
    """An empty package: with it a release is another one."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "another-release"\nversion = "1.0"\n[tool.setuptools]\npy-modules = []\n'
    )
    return folder
