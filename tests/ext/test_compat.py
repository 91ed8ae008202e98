"""The checks against the installed vLLM: on a machine of either kind, without side effects."""

from __future__ import annotations

import pytest
from vllm.platforms import current_platform

from ddtree_ext.engine import compat
from ddtree_ext.engine.hooks import HOOKS

CPU_ONLY = [name for name in HOOKS if ".cpu" in name.split(":")[0]]


def test_every_hook_is_as_it_was_verified() -> None:
    compat.check_hooks()


def test_a_changed_hook_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "vllm.v1.worker.gpu.input_batch:post_update"
    monkeypatch.setitem(HOOKS, name, "0" * 16)
    with pytest.raises(compat.CompatibilityError, match=r"differ from the verified ones: .*post_update"):
        compat.check_hooks()


def test_a_hook_that_is_gone_is_absent() -> None:
    assert compat.source_digest("vllm.v1.worker.gpu.input_batch:no_such_thing") == "absent"
    assert compat.source_digest("vllm.no_such_module:thing") == "absent"


def test_on_a_gpu_the_cpus_modules_are_not_even_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm.v1.worker.cpu puts a placeholder without elapsed_time in torch.Event's place, and the GPU's autotuner then fails."""
    looked_at: list[str] = []
    monkeypatch.setattr(compat, "source_digest", lambda name: looked_at.append(name) or HOOKS[name])
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    compat.check_hooks()
    assert CPU_ONLY
    assert set(looked_at) == set(HOOKS) - set(CPU_ONLY)


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.__version__", "0.33.1")
    with pytest.raises(compat.CompatibilityError, match=r"verified with vLLM 0\.32\.0, this is 0\.33\.1"):
        compat.check_version()
