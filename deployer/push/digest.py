"""SHA-256 on both ends. The laptop's are remembered (see checkpoint.content); the host's are always computed anew."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deployer.checkpoint import content
from deployer.push import remote
from deployer.transport.base import Result, Transport

SCRIPT = Path(remote.__file__).read_text(encoding="utf-8")
PYTHON = ("python3", "-I", "-S")  # nothing of the host's own modules and variables
TIMEOUT = 3600.0  # seconds; a cold disk reads a large target slowly


def of_file(path: Path) -> str:
    """The SHA-256 of a file on the laptop."""
    return content.read(path).sha256


def of_prefix(path: Path, length: int) -> str:
    """The SHA-256 of a file's first `length` bytes, on the laptop."""
    return remote.digest(str(path), length)


def there(transport: Transport, paths: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of those of `paths` that are files on the host."""
    if not paths:
        return {}
    answer = helper(transport, "digests", list(paths), check=True).stdout
    return {path: (size, sha) for path, (size, sha) in json.loads(answer).items()}


def helper(transport: Transport, verb: str, *words: Any, check: bool) -> Result:
    """Runs a verb of remote.py on the host, as root; `words` are what JSON can say."""
    program = call(SCRIPT, verb, *words).encode()
    return transport.run(shlex.join([*PYTHON, "-"]), sudo=True, check=check, timeout=TIMEOUT, stdin=program)


def reader(verb: str, *words: Any) -> str:
    """The command of a verb of remote.py that reads data from its stdin."""
    return shlex.join([*PYTHON, "-c", call(SCRIPT, verb, *words)])


def call(script: str, verb: str, *words: Any) -> str:
    """A script that runs one verb: its words travel as JSON inside it."""
    return f"{script}\nmain({verb!r}, *json.loads({json.dumps(words)!r}))\n"
