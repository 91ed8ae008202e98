"""The checks against the installed vLLM: on a machine of either kind, without side effects."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest
from vllm.platforms import current_platform

from ddtree_ext import engine
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


def overridden() -> set[str]:
    """Every function of vLLM's classes that a class of ours, or a mix-in of it, has in its place."""
    found = set()
    for info in pkgutil.iter_modules(engine.__path__, "ddtree_ext.engine."):
        for ours in vars(importlib.import_module(info.name)).values():
            if not inspect.isclass(ours) or ours.__module__ != info.name:
                continue
            parts = [part for part in ours.__mro__ if part.__module__.startswith("ddtree_ext.")]
            stock = [part for part in ours.__mro__ if part.__module__.startswith("vllm.")]
            for name in {name for part in parts for name, value in vars(part).items() if is_code(value)}:
                replaced = next((part for part in stock if name in vars(part)), None)
                if replaced is not None:
                    found.add(f"{replaced.__module__}:{replaced.__qualname__}.{name}")
    return found


def is_code(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, (staticmethod, classmethod, property))


def test_everything_that_is_overridden_is_a_hook() -> None:
    names = overridden()
    assert "vllm.v1.worker.gpu.spec_decode.dflash.speculator:DFlashSpeculator.propose" in names
    assert len(names) > 30
    assert names - set(HOOKS) == set()
