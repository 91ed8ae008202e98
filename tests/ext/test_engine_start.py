"""A real engine that cannot serve trees does not start, and says why in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ext.engine.job import Ask, Job, run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"worker_cls": "auto"},
            "--attention-backend CUSTOM is the tree's attention, and this worker is not the tree's",
        ),
        ({"enable_prefix_caching": True}, "prefix caching of a hybrid model: pass --no-enable-prefix-caching"),
    ],
    ids=["another worker", "prefix caching"],
)
def test_an_engine_that_cannot_serve_trees_does_not_start(options: dict[str, Any], why: str) -> None:
    with pytest.raises(AssertionError, match="tree on hybrid failed") as failed:
        run(Job("hybrid", "tree", ((Ask("x", 1),),), tokens=20, engine=options))
    assert f"OptionError: {why}" in str(failed.value) or f"  - {why}" in str(failed.value), str(failed.value)[-2000:]
