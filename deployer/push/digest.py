"""SHA-256 on both ends. The laptop's are remembered by path, size, time and inode;
the host's are always computed anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from deployer.push import remote
from deployer.transport.base import Result, Transport

SCRIPT = Path(remote.__file__).read_bytes()
TIMEOUT = 3600.0  # seconds; a cold disk reads a large target slowly


def of_file(path: Path) -> str:
    """The SHA-256 of a file on the laptop."""
    status = path.stat()
    key = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
    known = _remembered()
    if key not in known:
        with path.open("rb") as file:
            known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        _remember(known)
    return known[key]


def of_prefix(path: Path, length: int) -> str:
    """The SHA-256 of a file's first `length` bytes, on the laptop."""
    return remote.digest(str(path), length)


def there(transport: Transport, paths: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of those of `paths` that are files on the host."""
    if not paths:
        return {}
    answer = helper(transport, "digests", *paths, check=True).stdout
    return {path: (size, sha) for path, (size, sha) in json.loads(answer).items()}


def helper(transport: Transport, *words: str, check: bool) -> Result:
    """Runs remote.py on the host, as root."""
    command = shlex.join(["python3", "-", *words])
    return transport.run(command, sudo=True, check=check, timeout=TIMEOUT, stdin=SCRIPT)


def _file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ddtree-deploy" / "sha256.json"


def _remembered() -> dict[str, str]:
    with suppress(OSError, ValueError):
        known: dict[str, str] = json.loads(_file().read_text())
        return known
    return {}


def _remember(known: dict[str, str]) -> None:
    """Best effort: without the cache everything works, slower."""
    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        temporary = _file().with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(known))
        os.replace(temporary, _file())
