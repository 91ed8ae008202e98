"""A release: one engine, named after its content. Pure: identities, remote paths and commands; nothing runs here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from deployer.install.lockfile import Lock, Pin, wheel_identity

VLLM_VERSION = "0.32.0"
PATIENCE = 900  # seconds for a command that a broken line left running on the host


@dataclass(frozen=True)
class LocalWheel:
    """A wheel that was built on the laptop, with the hex SHA-256 of its bytes."""

    path: Path
    sha256: str

    def pin(self) -> Pin:
        """The wheel as a line of a lock."""
        return Pin(*wheel_identity(self.path.name), (self.sha256,))


@dataclass(frozen=True)
class Release:
    """Everything that decides what an installed engine is. Two equal releases are the same folder on the host."""

    build: str
    python: str
    lock: Lock
    wheels: tuple[LocalWheel, ...]

    @property
    def identifier(self) -> str:
        """12 hex digits over lock, local wheels, Python version and build; it starts with the build for the reader."""
        parts = [self.build, self.python, self.lock.text(), *sorted(wheel.sha256 for wheel in self.wheels)]
        return f"{self.build}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:12]}"

    def local_lock(self) -> Lock:
        """The locally built wheels as a lock of their own."""
        return Lock(tuple(wheel.pin() for wheel in self.wheels))

    def manifest(self) -> str:
        """What ROOT/releases/<id>/release.json says."""
        about = {
            "id": self.identifier,
            "build": self.build,
            "python": self.python,
            "vllm": VLLM_VERSION,
            "torch": self.lock.version("torch"),
            "wheels": {wheel.path.name: wheel.sha256 for wheel in self.wheels},
        }
        return json.dumps(about, indent=2) + "\n"


@dataclass(frozen=True)
class Folder:
    """The files of one release on the host."""

    path: str

    @property
    def incomplete(self) -> str:
        """Present from the first write until every check passed."""
        return f"{self.path}/INCOMPLETE"

    @property
    def manifest(self) -> str:
        return f"{self.path}/release.json"

    @property
    def wheels(self) -> str:
        return f"{self.path}/wheels"

    @property
    def locks(self) -> tuple[str, str]:
        """The build's lock and the lock of the local wheels."""
        return f"{self.path}/lock.txt", f"{self.path}/local.txt"

    @property
    def venv(self) -> str:
        return f"{self.path}/venv"

    @property
    def python(self) -> str:
        return f"{self.venv}/bin/python"

    @property
    def vllm(self) -> str:
        return f"{self.venv}/bin/vllm"


def begin_command(folder: Folder) -> str:
    """Marks the folder as unfinished before anything else is in it."""
    return f"mkdir -p {quote(folder.path)} && touch {quote(folder.incomplete)} && chmod 0755 {quote(folder.path)}"


def alone_command(folder: Folder, command: str) -> str:
    """The command, when no other writes to this release: what a broken line left running on the host ends first."""
    return f"exec flock -w {PATIENCE} {quote(folder.incomplete)} /bin/sh -c {quote(command)}"


def venv_command(folder: Folder, python: str) -> str:
    """Makes the venv at its final path (shebangs do not move); an interrupted one is made anew."""
    return f"umask 022; rm -rf {quote(folder.venv)} && {quote(python)} -m venv {quote(folder.venv)}"


def pip_command(folder: Folder, lock: str, wheels: str | None) -> str:
    """Installs one lock, hash-checked and without resolving; from `wheels` only, or from the host's own index."""
    source = f"--no-index --find-links {quote(wheels)}" if wheels else ""
    return (
        f"umask 022; PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 {quote(folder.python)} -m pip install --no-compile "
        f"--no-deps --require-hashes --only-binary :all: --progress-bar off {source} -r {quote(lock)}"
    )


def compile_command(folder: Folder) -> str:
    """Writes the .pyc files now: the service may not write them, and starts three times slower without."""
    return f"umask 022; {quote(folder.python)} -m compileall -q -j 0 {quote(folder.venv)}/lib >/dev/null || true"


def finish_command(folder: Folder) -> str:
    """The release counts from here on."""
    return f"rm -f {quote(folder.incomplete)} && sync -f {quote(folder.path)}"


def activate_command(folder: Folder, current: str) -> str:
    """Points `current` to the release in one rename: no moment without one."""
    return f"ln -sfn {quote(folder.path)} {quote(current)}.new && mv -Tf {quote(current)}.new {quote(current)}"


def complete_command(releases: str) -> str:
    """Prints the identifiers of the finished releases, newest first."""
    return (
        f"cd {quote(releases)} 2>/dev/null && for r in $(ls -1t); do "
        f'[ -f "$r/release.json" ] && [ ! -e "$r/INCOMPLETE" ] && echo "$r"; done; true'
    )


def interrupted_command(releases: str) -> str:
    """Prints the identifiers of the releases that were begun and never finished."""
    return f'cd {quote(releases)} 2>/dev/null && for r in *; do [ ! -e "$r/INCOMPLETE" ] || echo "$r"; done; true'


def superfluous(finished: tuple[str, ...], keep: int, needed: frozenset[str]) -> tuple[str, ...]:
    """The releases to remove: all but the newest `keep` and those that something still points to."""
    return tuple(identifier for identifier in finished[keep:] if identifier not in needed)
