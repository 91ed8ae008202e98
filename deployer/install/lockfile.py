"""Lock files: every wheel of a build pinned by version and SHA-256, so that two installs are the same bytes.

The format is pip's own hash-checking requirements file (`name==version --hash=sha256:...`), without index lines: where the
wheels come from is the host's or the laptop's pip configuration, what they are is decided here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from deployer.errors import InstallError

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*)(?P<rest>(?:\s+--hash=\S+)+)$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)")


def canonical(name: str) -> str:
    """A distribution's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Pin:
    """One distribution at one version; `sha256` holds the hex digest of every file that may stand for it."""

    name: str
    version: str
    sha256: tuple[str, ...]

    def line(self) -> str:
        """The pin as pip's requirements format writes it."""
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in self.sha256)
        return f"{self.name}=={self.version}{hashes}"


@dataclass(frozen=True)
class Lock:
    """The pins of one build in the order of their names."""

    pins: tuple[Pin, ...]

    def version(self, name: str) -> str | None:
        """The version that `name` is pinned to."""
        return next((pin.version for pin in self.pins if canonical(pin.name) == canonical(name)), None)

    def text(self) -> str:
        """The lock as a file that `pip install --require-hashes` reads."""
        return "".join(f"{pin.line()}\n" for pin in self.pins)


def parse(text: str, source: str = "lock") -> Lock:
    """Reads a lock. A line without an exact version and a SHA-256 is an InstallError: it would not be a lock."""
    pins = []
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), start=1):
        line = line.split(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        match = _PIN.match(line)
        digests = _HASH.findall(match["rest"]) if match else []
        if match is None or len(digests) != match["rest"].count("--hash="):
            raise InstallError(
                f"Pin {number} is not of the form name==version --hash=sha256:...: {line[:80]}",
                where=source,
                remedy="make the lock anew as docs/locks.md says",
            )
        pins.append(Pin(match["name"], match["version"], tuple(sorted(digests))))
    return Lock(tuple(sorted(pins, key=lambda pin: canonical(pin.name))))


def bundled(build: str) -> Lock:
    """The lock that comes with this package for `build` (cpu or cuda)."""
    path = files("deployer.install").joinpath("locks", f"{build}.txt")
    return parse(path.read_text(encoding="utf-8"), f"deployer/install/locks/{build}.txt")


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def wheel_identity(filename: str) -> tuple[str, str]:
    """(canonical name, version) that a wheel's file name states (PEP 427)."""
    name, version = filename.removesuffix(".whl").split("-")[:2]
    return canonical(name), version.replace("%2B", "+")


def lock_of(wheels: Iterable[Path]) -> Lock:
    """The lock that admits exactly these wheel files."""
    pins = [Pin(*wheel_identity(wheel.name), (sha256(wheel),)) for wheel in wheels]
    return Lock(tuple(sorted(pins, key=lambda pin: pin.name)))
