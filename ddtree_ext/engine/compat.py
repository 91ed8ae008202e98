"""The exact vLLM this extension was written against: version and the source of every function it overrides or relies on.

A changed hook would not crash, it would sample wrongly; so a mismatch is an error at start.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from typing import Any

from ddtree_ext.engine.hooks import HOOKS, VLLM_VERSION


class CompatibilityError(RuntimeError):
    """The installed vLLM is not the one this extension was verified with."""


def check_version() -> None:
    """Raises CompatibilityError unless the installed vLLM is VLLM_VERSION (a local suffix such as +cpu may follow)."""
    import vllm

    if vllm.__version__.split("+")[0] != VLLM_VERSION:
        raise CompatibilityError(
            f"ddtree_ext is verified with vLLM {VLLM_VERSION}, this is {vllm.__version__}: install the pinned version"
        )


def check_hooks() -> None:
    """Raises CompatibilityError naming every overridden function whose source differs from the verified one."""
    check_version()
    changed = [name for name, digest in HOOKS.items() if _belongs_here(name) and source_digest(name) != digest]
    if changed:
        raise CompatibilityError(
            f"these functions of vLLM {VLLM_VERSION} differ from the verified ones: {', '.join(changed)}. "
            "Was the installation patched? Reinstall the pinned vLLM, or verify ddtree_ext against the change."
        )


def _belongs_here(name: str) -> bool:
    """Hooks of the CPU's modules count on the CPU only: their import alone replaces torch.Event in the whole process."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu()) or not name.startswith(("vllm.v1.worker.cpu", "vllm.platforms.cpu"))


def source_digest(name: str) -> str:
    """First 16 hex digits of the SHA-256 of a function's source; `name` is "module:qualified.name"; "absent" if it is gone."""
    module, _, path = name.partition(":")
    found: Any
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = inspect.getattr_static(found, part)
    except (ImportError, AttributeError):
        return "absent"
    while hasattr(found, "__wrapped__") or hasattr(found, "__func__") or hasattr(found, "fget"):
        found = getattr(found, "__wrapped__", None) or getattr(found, "__func__", None) or found.fget
    while hasattr(found, "fn"):  # of a Triton kernel, under its heuristics
        found = found.fn
    source = inspect.getsource(found)
    return hashlib.sha256(source.encode()).hexdigest()[:16]
