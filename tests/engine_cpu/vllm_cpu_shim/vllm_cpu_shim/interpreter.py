"""The interpreter of Triton 3.9.0: one point of arithmetic, and fast enough for whole models.

The defects. float32 -> bfloat16 is cut, where hardware rounds to nearest, ties to even: every interpreted kernel is biased. A
mask that came of a scalar and a tensor is no bool in memory, and refused (vLLM's grammar kernel). Of speed alone: every
integer operation is done twice more to look for an overflow; bfloat16 -> float32 goes bit by bit; and a launch replaces
triton.language's functions by interpreted ones, while every call of a device function inside it replaces them all again,
which takes a millisecond.
The mends: it rounds; masks are bools; no overflow check, as when compiled; a shift; a call replaces functions only if they
were not yet in the same launch.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np


def mend(interpreter: ModuleType) -> None:
    """``interpreter`` is ``triton.runtime.interpreter``."""
    _mend_conversion(interpreter)
    _mend_masks(interpreter.InterpreterBuilder)
    _mend_calls(interpreter)
    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)


def _mend_conversion(interpreter: ModuleType) -> None:
    language, general = interpreter.tl, interpreter._convert_float

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        """The raw bits of ``data``, given as ``source``, in ``target``."""
        if source == language.float32 and target == language.bfloat16:
            bits = np.ascontiguousarray(data).view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            nan = (bits & 0x7FFFFFFF) > 0x7F800000
            return np.where(nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)
        if source == language.bfloat16 and target == language.float32:
            return np.ascontiguousarray(data).view(np.uint16).astype(np.uint32) << np.uint32(16)
        return general(data, source, target, rounding)

    interpreter._convert_float = convert


def _mend_masks(builder: Any) -> None:
    load, store = builder.create_masked_load, builder.create_masked_store

    def as_bool(mask: Any) -> Any:
        mask.data = mask.data.astype(bool, copy=False)
        return mask

    builder.create_masked_load = lambda self, ptrs, mask, *rest: load(self, ptrs, as_bool(mask), *rest)
    builder.create_masked_store = lambda self, ptrs, value, mask, *rest: store(self, ptrs, value, as_bool(mask), *rest)


def _mend_calls(interpreter: ModuleType) -> None:
    replaced: set[frozenset[int]] = set()
    modules: dict[Any, frozenset[int]] = {}
    language = (interpreter.tl, interpreter.tl.core)
    launch = interpreter.GridExecutor.__call__

    def launch_afresh(self: Any, *args: Any, **kwargs: Any) -> None:
        replaced.clear()
        launch(self, *args, **kwargs)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in modules:
            values = [value for value in self.fn.__globals__.values() if isinstance(value, ModuleType)]
            modules[self.fn] = frozenset(id(value) for value in values if value in language)
        if modules[self.fn] not in replaced:
            interpreter._patch_lang(self.fn)
            replaced.add(modules[self.fn])
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter.GridExecutor.__call__ = launch_afresh
    interpreter.InterpretedFunction.__call__ = call
