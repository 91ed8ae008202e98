"""The wheelhouse: a folder on the laptop that holds exactly the files a lock admits, for hosts without an index.

`python -m deployer.install.wheelhouse FOLDER` fills one without a host, for the build and the Python that are named.

Each wheel enters it by one rename after its hash was checked: an interrupted folder is continued and never lies.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deployer.errors import DeployError, InstallError
from deployer.install.lockfile import Lock, Pin, bundled, canonical, sha256, wheel_identity

_GLIBC = 36  # Debian 12; some locked wheels are tagged manylinux_2_34
_PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(_GLIBC, 4, -1)), "manylinux2014_x86_64",
              "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64")  # fmt: skip
_NO_SUCH = re.compile(r"No matching distribution found for (\S+)")
_MISMATCH = "DO NOT MATCH THE HASHES"


@dataclass(frozen=True)
class Found:
    """What a folder holds of a lock: the good files, and the pins that no good file stands for."""

    wheels: tuple[Path, ...]
    missing: tuple[Pin, ...]


def look(lock: Lock, folder: Path) -> Found:
    """Compares a folder with a lock, by SHA-256. Changes nothing."""
    candidates: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(folder.glob("*.whl")):
        candidates.setdefault(wheel_identity(path.name), []).append(path)
    wheels, missing = [], []
    for pin in lock.pins:
        named = candidates.get((canonical(pin.name), pin.version), [])
        good = [path for path in named if sha256(path) in pin.sha256]
        wheels += good
        missing += [] if good else [pin]
    return Found(tuple(wheels), tuple(missing))


def fill(lock: Lock, folder: Path, python: str, say: Callable[[str], None]) -> Found:
    """Downloads what is missing with the laptop's pip configuration. `python` is the host's version, e.g. "3.11"."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = look(lock, folder).missing
    if missing:
        say(f"downloading {len(missing)} of {len(lock.pins)} wheels")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".wheels-") as incoming:
            _download(Lock(missing), Path(incoming), python)
            for wheel in look(Lock(missing), Path(incoming)).wheels:
                wheel.replace(folder / wheel.name)
    found = look(lock, folder)
    if found.missing:
        raise InstallError(
            f"{len(found.missing)} wheels are missing after the download, the first {found.missing[0].name}",
            where=str(folder),
            remedy="run the command again",
        )
    return found


def _download(lock: Lock, into: Path, python: str) -> None:
    requirements = into / "requirements.txt"
    requirements.write_text(lock.text(), encoding="utf-8")
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--require-hashes", "--only-binary", ":all:", "--implementation", "cp", "--python-version", python,
               *platforms, "--dest", str(into), "--requirement", str(requirements)]  # fmt: skip
    finished = subprocess.run(command, text=True, capture_output=True, check=False)
    if finished.returncode != 0:
        raise explained(finished.stderr)


def explained(stderr: str) -> InstallError:
    """pip's complaint as one sentence."""
    absent = _NO_SUCH.search(stderr)
    if absent and absent[1].startswith("torch==") and absent[1].endswith("+cpu"):
        return InstallError(
            f"PyTorch's CPU build, {absent[1]}, is offered by no index or wheel directory that pip is configured with",
            where="pip config list",
            remedy="add an index with PyTorch's CPU builds (extra-index-url) or a folder with the wheel (find-links)",
        )
    if absent:
        return InstallError(
            f"{absent[1]} is offered by no index or wheel directory that pip is configured with",
            where="pip config list",
            remedy="add an index or a wheel directory that has it",
        )
    if _MISMATCH in stderr:
        return InstallError(
            "A downloaded wheel is not the one that the lock names (its SHA-256 differs)",
            where="pip download",
            remedy="find out which index serves other bytes under the same version; do not install from it",
        )
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    what = f"pip download failed: {lines[-1] if lines else 'no message'}"
    return InstallError(what, where="pip download", remedy="see pip config list")


def main() -> None:
    """Fills a wheelhouse with what the bundled lock of a build names; a full one is left as it is."""
    parser = argparse.ArgumentParser(prog="python -m deployer.install.wheelhouse", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--python", default="3.11", help="the host's version (default 3.11)")
    asked = parser.parse_args()
    try:
        found = fill(bundled(asked.build), asked.folder, asked.python, print)
    except DeployError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"{len(found.wheels)} wheels, every one by its SHA-256: {asked.folder}")


if __name__ == "__main__":
    main()
