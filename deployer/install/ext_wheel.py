"""Builds wheels from source folders on the laptop: ddtree_ext, and the local packages that an inventory names.

The same sources give the same bytes: file times, modes and the build's own clock are fixed, so that a wheel's hash says
what is in it and a release's identity does not change from run to run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from deployer.errors import InstallError
from deployer.install.source import project_path

# 1980-01-01 is the earliest that a zip file can say; a day later, so that no time zone falls before it.
SOURCE_DATE_EPOCH = "315619200"
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", "build", "dist", ".*")


def ext_source() -> Path:
    """The folder of ddtree_ext's own pyproject.toml."""
    return project_path("ddtree_ext")


def wheel_cache() -> Path:
    """Where built wheels are kept between runs, by the hash of their sources."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ddtree-deploy" / "wheels"


def source_digest(source: Path) -> str:
    """Hash of everything that decides a wheel's bytes: the sources by name and content, and the builder's version."""
    digest = hashlib.sha256(f"setuptools {version('setuptools')}\0{SOURCE_DATE_EPOCH}\0".encode())
    for path in sorted(_files(source)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(source).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def build_wheel(source: Path, cache: Path | None = None) -> Path:
    """The wheel of the package in `source`, from the cache when these very sources were built before."""
    if not (source / "pyproject.toml").is_file():
        raise InstallError(
            "A local package has no pyproject.toml", where=str(source), remedy="correct [install] local_packages"
        )
    home = (cache or wheel_cache()) / source_digest(source)[:16]
    if built := sorted(home.glob("*.whl")):
        return built[0]
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".build-") as work:
        finished = Path(work, "out")
        _run_pip_wheel(source, _copied(source, Path(work, source.name)), finished)
        try:
            finished.rename(home)
        except OSError:  # another run published the same wheel in the meantime
            if not home.is_dir():
                raise
    return sorted(home.glob("*.whl"))[0]


def _files(source: Path) -> list[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(source):
        ignored = _IGNORED(folder, [*folders, *names])
        folders[:] = [name for name in folders if name not in ignored]
        found += [Path(folder, name) for name in names if name not in ignored]
    return found


def _copied(source: Path, destination: Path) -> Path:
    """Copies the sources with fixed modes: the umask of whoever builds must not show in the wheel."""
    for path in _files(source):
        target = destination / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        target.chmod(0o644)
    return destination


def _run_pip_wheel(source: Path, copy: Path, out: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    environment = os.environ | {"SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, "PIP_CONFIG_FILE": os.devnull}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    finished = subprocess.run(
        [*command, "--wheel-dir", str(out), str(copy)], env=environment, text=True, capture_output=True, check=False
    )
    if finished.returncode != 0 or not list(out.glob("*.whl")):
        reason = finished.stderr.strip().splitlines()[-1:] or ["pip wheel made no wheel"]
        raise InstallError(f"A wheel could not be built: {reason[0]}", where=str(source), remedy="mend that package")
