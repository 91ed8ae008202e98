"""Stand-in: mends what keeps vLLM 0.32.0's CPU build from running the V2 runner here, and running it right.

A ``.pth`` file calls :func:`install` when the interpreter starts, in every process of the environment (the API server,
the engine core, a worker), and no installed file is changed. ``install`` imports neither torch nor vLLM: it adds a
finder that waits for the modules named in ``MENDS`` and calls the mend right after the module's own code has run.

- ``torchvision.extension``: PyPI's torchvision is linked against CUDA, beside a CPU torch its ``_C`` cannot load, and
  importing torchvision then fails (see :mod:`vllm_cpu_shim.torchvision_ops`).
- vLLM's CPU GDN attention: drafts cut short misalign the convolution's window (see :mod:`vllm_cpu_shim.ragged_conv`).
- Top-k and top-p: stock's Triton kernel does not run interpreted (see :mod:`vllm_cpu_shim.top_k_top_p`).
- Triton's interpreter cuts bfloat16 where hardware rounds, and is slow (see :mod:`vllm_cpu_shim.interpreter`).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

MENDS = {
    "torchvision.extension": "vllm_cpu_shim.torchvision_ops",
    "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention": "vllm_cpu_shim.ragged_conv",
    "vllm.v1.sample.ops.topk_topp_sampler": "vllm_cpu_shim.top_k_top_p",
    "triton.runtime.interpreter": "vllm_cpu_shim.interpreter",
}
"""Module to wait for -> module whose ``mend(module)`` is then called."""


class _MendingLoader(Loader):
    """Loads as ``inner`` does, then mends."""

    def __init__(self, inner: Loader, mend: str) -> None:
        self._inner, self._mend = inner, mend

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        importlib.import_module(self._mend).mend(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)  # get_source, get_filename ...: inspect and linecache ask for them


class _MendingFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        mend = MENDS.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if mend else None
        if mend and spec and spec.loader:
            spec.loader = _MendingLoader(spec.loader, mend)
        return spec


def install() -> None:
    """Put the finder first in ``sys.meta_path``; a second call does nothing."""
    if not any(isinstance(finder, _MendingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MendingFinder())
