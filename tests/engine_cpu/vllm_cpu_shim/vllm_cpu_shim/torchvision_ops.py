"""torchvision 0.28.0 from PyPI beside torch 2.13.0+cpu.

The defect: its ``_C`` extension is linked against CUDA and does not load; ``torchvision::nms`` and ``qnms`` are then
not defined, and ``torchvision._meta_registrations`` fails at import, because ``register_fake`` wants them. transformers
imports torchvision for the image half of Qwen3.5, which vLLM imports for the text half too.
The mend: declare the two schemas, without a kernel. Importing works; calling either op is still an error.
"""

from __future__ import annotations

from types import ModuleType

_KEPT: list[object] = []  # a Library takes its definitions with it when it is collected


def mend(extension: ModuleType) -> None:
    """``extension`` is ``torchvision.extension``; does nothing where the compiled ops are there."""
    if extension._has_ops():
        return
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for op in ("nms", "qnms"):
        library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)
