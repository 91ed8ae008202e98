"""Lock files: every wheel of a build pinned by version and SHA-256, so that two installs are the same bytes.

The format is pip's own hash-checking requirements file (`name==version --hash=sha256:...`), without index lines: where
the wheels come from is the host's or the laptop's pip configuration, what they are is decided here.
`python -m deployer.install.lockfile REPORT...` makes one from reports of `pip install --dry-run --report`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from deployer.errors import InstallError

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[A-Za-z0-9][\w.+!-]*)(?P<rest>(?:\s+--hash=\S+)+)$")
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
    for number, raw in enumerate(text.replace("\\\n", " ").splitlines(), start=1):
        line = raw.split(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        match = _PIN.match(line)
        digests = _HASH.findall(match["rest"]) if match else []
        if match is None or len(digests) != match["rest"].count("--hash="):
            raise InstallError(
                f"Pin {number} is not of the form name==version --hash=sha256:...: {line[:80]}",
                where=source,
                remedy="make the lock anew: python -m deployer.install.lockfile --help",
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


def merged(reports: Iterable[Mapping[str, Any]]) -> Lock:
    """One lock for several Python versions, from reports of `pip install --dry-run --ignore-installed --report FILE`.

    A distribution must resolve to the same version in each; its hashes are those of all reports.
    """
    pins: dict[str, Pin] = {}
    for report in reports:
        for item in report["install"]:
            name, version = item["metadata"]["name"], item["metadata"]["version"]
            digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
            known = pins.get(canonical(name), Pin(name, version, ()))
            if known.version != version:
                what = f"{name} resolves to {known.version} and to {version}"
                raise InstallError(what, where="pip's reports", remedy="constrain it to one")
            pins[canonical(name)] = Pin(name, version, tuple(sorted({*known.sha256, digest})))
    return Lock(tuple(pins[name] for name in sorted(pins)))


def main() -> None:
    """Prints the lock that pip's reports (the arguments) amount to."""
    parser = argparse.ArgumentParser(prog="python -m deployer.install.lockfile", description=main.__doc__)
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT", help="pip install --dry-run --report REPORT")
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in parser.parse_args().reports]
    print(merged(reports).text(), end="")


if __name__ == "__main__":
    main()
