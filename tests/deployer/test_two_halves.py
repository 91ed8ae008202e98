"""The laptop's half and the host's: neither installs what only the other runs."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ENGINE = {"torch", "vllm", "triton", "ddtree-ext", "ddtree_ext"}
TOOL = {"fabric", "paramiko", "invoke"}


def names(lines: list[str]) -> set[str]:
    return {found[0].lower() for line in lines if (found := re.match(r"[A-Za-z0-9][\w.-]*", line.strip()))}


def test_the_laptops_half_asks_for_no_engine() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(word for words in project["optional-dependencies"].values() for word in words)]
    assert names(asked) & TOOL
    assert not names(asked) & ENGINE
    assert not names((REPOSITORY / "tests/setup/requirements.txt").read_text().splitlines()) & ENGINE


def test_where_the_deployer_runs_no_engine_is_installed() -> None:
    here = {found.metadata["Name"].lower() for found in distributions()}
    assert "ddtree-deploy" in here
    assert not here & ENGINE
    assert all(find_spec(name) is None for name in ("torch", "vllm"))


@pytest.mark.parametrize("lock", ["cpu.txt", "cuda.txt"])
def test_a_release_on_the_host_has_vllm_and_nothing_of_the_laptops(lock: str) -> None:
    pinned = names((REPOSITORY / "deployer/install/locks" / lock).read_text().splitlines())
    assert "torch" in pinned
    assert any(name.startswith("vllm") for name in pinned)
    assert not pinned & TOOL
