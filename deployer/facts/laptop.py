"""This machine, from which is deployed: its tools, its keys, and what an inventory expects of it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from deployer.facts.host import version
from deployer.inventory.model import Inventory
from deployer.transport.resolve import Hop

_OPENSSH = re.compile(r"^OpenSSH(?:_for_Windows)?_(\d+\.\d+\w*)")
_RSYNC = re.compile(r"^rsync\s+version\s+v?(\d+\.\d+(?:\.\d+)?)", re.MULTILINE)


@dataclass(frozen=True)
class Rsync:
    """`kind` is rsync, or openrsync (macOS), which calls itself compatible with an old rsync. Empty version: absent."""

    kind: str = ""
    version: tuple[int, ...] = ()


@dataclass(frozen=True)
class Laptop:
    """`keys` is the number of keys in the agent, None where there is no agent; `identities` are the private keys on
    disk that the way to the host names, None where there is no way; `unset` the variables that the inventory wants
    from here and that are not set; `wheels` counts those in the wheelhouse, None where there is to be none; `free` is
    the room for them in bytes.
    """

    system: str
    python: tuple[int, ...]
    pip: bool
    openssh: str
    rsync: Rsync
    keys: int | None
    identities: tuple[Path, ...] | None = ()
    unset: tuple[str, ...] = ()
    wheels: int | None = None
    free: int = 0


def parse_openssh(text: str) -> str:
    """The version in what `ssh -V` says; empty where it says none."""
    match = _OPENSSH.search(text)
    return match[1] if match else ""


def parse_rsync(text: str) -> Rsync:
    """Reads `rsync --version`."""
    match = _RSYNC.search(text)
    return Rsync("openrsync" if "openrsync" in text else "rsync", version(match[1]) if match else ())


def parse_agent(text: str, code: int) -> int | None:
    """The number of keys that `ssh-add -l` lists: code 1 is an agent without keys, 2 no agent."""
    return {0: len(text.splitlines()), 1: 0}.get(code)


def read(inventory: Inventory, hops: tuple[Hop, ...], environment: Mapping[str, str] = os.environ) -> Laptop:
    """Looks at this machine; changes nothing. `hops` is the way to the host, empty for this machine itself."""
    identities = tuple(dict.fromkeys(key for hop in hops for key in hop.identities if key.is_file()))
    wanted = (value[1:] for value in inventory.serve.environment.values() if value.startswith("$"))
    house = inventory.install.wheelhouse if inventory.install.source == "wheelhouse" else None
    return Laptop(
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        python=tuple(sys.version_info[:3]),
        pip=find_spec("pip") is not None,
        openssh=parse_openssh(_said("ssh", "-V")[0]),
        rsync=parse_rsync(_said("rsync", "--version")[0]),
        keys=parse_agent(*_said("ssh-add", "-l")),
        identities=identities if hops else None,
        unset=tuple(name for name in wanted if name not in environment),
        wheels=None if house is None else len(list(house.glob("*.whl"))),
        free=shutil.disk_usage(_existing(house or Path.cwd())).free,
    )


def _said(*command: str) -> tuple[str, int]:
    """What a tool prints, and its exit code; 127 where it is not there or does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", 127
    return done.stdout + done.stderr, done.returncode


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())
