"""The driver half of the entry; Triton's table demands one concrete ``DriverBase`` in this module."""

from __future__ import annotations

from typing import Any, NoReturn

from triton.backends import driver


def _refuse() -> NoReturn:
    raise NotImplementedError("fake_triton_cpu launches nothing: set TRITON_INTERPRET=1 before Triton is imported")


class CPUDriver(driver.DriverBase):
    """Never active, so Triton itself cannot choose it; vLLM's CPU build only counts that it is there."""

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        _refuse()

    def get_current_target(self) -> Any:
        _refuse()

    def get_active_torch_device(self) -> Any:
        _refuse()

    def get_benchmarker(self) -> Any:
        _refuse()
