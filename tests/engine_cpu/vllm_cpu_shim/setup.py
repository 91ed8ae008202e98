"""Puts the .pth file beside the package, at the root of the wheel; pyproject.toml alone has no way to say that."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PTH = "vllm_cpu_shim.pth"


class BuildWithPth(build_py):
    def run(self) -> None:
        super().run()
        target = Path(self.build_lib) / PTH
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(__file__).parent / PTH, target)


setup(cmdclass={"build_py": BuildWithPth})
