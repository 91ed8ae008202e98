"""A lab for a test session. A room that wants it says, in its conftest: `from tests.lab.fixture import staging_lab`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .box import Lab
from .place import place

_NOWHERE_ELSE = ("LAB_DIR", "LAB_NS")


def lab_beside(name: str, guests: str = "") -> Lab:
    """A lab of its own beside the developer's: it shares the cached image, and nothing else."""
    usual = place()
    environ = {key: value for key, value in os.environ.items() if key not in _NOWHERE_ELSE}
    own = {"LAB_DIR": f"{usual.root}-{name}", "LAB_BASE": str(usual.base), "LAB_GUESTS": guests}
    return Lab(place({**environ, **own}))


@pytest.fixture(scope="session")
def staging_lab() -> Iterator[Lab]:
    """A freshly booted lab, wholly gone afterwards. Fails, with the reason, on a machine that cannot run one."""
    lab = lab_beside("test")
    lab.up(afresh=True)
    yield lab
    lab.down()
