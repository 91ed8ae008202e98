"""The interpreter of Triton 3.9.0, made fast enough for whole models.

The defects, of speed alone. Every integer addition is computed twice more to look for an overflow, as a debugging aid. And a
launch replaces triton.language's functions by interpreted ones, and every call of a device
function inside it replaces them all again, which takes a millisecond. A kernel with a helper in its loop spends most of its
time there.
The mend: no overflow check, as when compiled; a call replaces functions only if they were not yet in the same launch.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any


def mend(interpreter: ModuleType) -> None:
    """Replace ``InterpretedFunction.__call__`` and follow launches of ``GridExecutor`` in ``triton.runtime.interpreter``."""
    replaced: set[frozenset[int]] = set()
    modules: dict[Any, frozenset[int]] = {}
    language = (interpreter.tl, interpreter.tl.core)
    launch = interpreter.GridExecutor.__call__

    def launch_afresh(self: Any, *args: Any, **kwargs: Any) -> None:
        replaced.clear()
        launch(self, *args, **kwargs)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in modules:
            modules[self.fn] = frozenset(id(value) for value in self.fn.__globals__.values() if isinstance(value, ModuleType) and value in language)
        if modules[self.fn] not in replaced:
            interpreter._patch_lang(self.fn)
            replaced.add(modules[self.fn])
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    interpreter.GridExecutor.__call__ = launch_afresh
    interpreter.InterpretedFunction.__call__ = call
