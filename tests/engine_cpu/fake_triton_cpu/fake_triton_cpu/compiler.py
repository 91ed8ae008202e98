"""The compiler half of the entry; Triton's table demands one concrete ``BaseBackend`` in this module."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from triton.backends import compiler


def _refuse() -> NoReturn:
    raise NotImplementedError("fake_triton_cpu compiles nothing: set TRITON_INTERPRET=1 before Triton is imported")


class CPUBackend(compiler.BaseBackend):
    """Claims the target "cpu" and refuses every request to compile for it."""

    @staticmethod
    def supports_target(target: compiler.GPUTarget) -> bool:
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        return "fake_triton_cpu"

    def parse_options(self, options: dict[str, Any]) -> object:
        _refuse()

    def add_stages(self, stages: dict[str, Any], options: object, language: Any) -> None:
        _refuse()

    def load_dialects(self, context: Any) -> None:
        _refuse()

    def get_module_map(self) -> dict[str, ModuleType]:
        _refuse()
