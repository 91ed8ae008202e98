"""SHA-256 on both ends. Both remember what they have read, by what changes with every change of a file: device, inode,
size and both times. The laptop's memory is in the user's cache (see checkpoint.content), the host's where only root
writes; `push --verify` does not believe the host's.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.checkpoint import content
from deployer.errors import TransferError
from deployer.plan import reading
from deployer.push import remote
from deployer.transport.base import Result, Transport

SCRIPT = Path(remote.__file__).read_text(encoding="utf-8")
PYTHON = ("python3", "-I", "-S")  # nothing of the host's own modules and variables
LONGEST = 40_000  # characters of paths in one command line
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


@dataclass(frozen=True)
class Seen:
    """A file on the host. `identity` changes with every change; `sha256` is empty when it is not remembered."""

    identity: str
    size: int
    sha256: str


def read(transport: Transport, seen: Mapping[str, Seen], memory: str) -> dict[str, str]:
    """Path -> SHA-256 of files on the host. Those that are not remembered are read, links to one file once, and
    `memory` keeps that; who watches is told how far it is.
    """
    known = {found.identity: found.sha256 for found in seen.values() if found.sha256}
    unread = {found.identity: path for path, found in seen.items() if found.identity not in known}
    total, done = sum(seen[path].size for path in unread.values()), 0
    for paths in _batches(list(unread.values())):
        for path, sha in _read(transport, paths, memory, done, total).items():
            known[seen[path].identity] = sha
        done += sum(seen[path].size for path in paths)
    return {path: known[found.identity] for path, found in seen.items()}


def _read(transport: Transport, paths: Sequence[str], memory: str, before: int, total: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in transport.stream(reader("read", list(paths), memory), sudo=True, timeout=TIMEOUT):
        said = json.loads(line)
        reading.tell(f"on {transport.name}", before + said.get("read", 0), total)
        found = said.get("found", found)
    return found


def _batches(paths: Sequence[str]) -> Iterator[list[str]]:
    """As many together as a command line takes."""
    batch: list[str] = []
    for path in paths:
        if batch and len(json.dumps([*batch, path])) > LONGEST:
            yield batch
            batch = []
        batch.append(path)
    if batch:
        yield batch


def helper(transport: Transport, verb: str, *words: Any, check: bool) -> Result:
    """Runs a verb of remote.py on the host, as root; `words` are what JSON can say."""
    return _run(transport, SCRIPT, verb, words, check)


@dataclass(frozen=True)
class Script:
    """Another program that runs on the host like remote.py; what to say when one of its verbs fails, what to do then."""

    text: str
    failed: str
    remedy: str

    def ask(self, transport: Transport, verb: str, *words: Any) -> Any:
        """What a verb printed, as JSON; None if it printed nothing. Raises TransferError."""
        result = _run(transport, self.text, verb, words, check=False)
        if not result.ok:
            said = result.stderr.strip()[-400:]
            raise TransferError(f"{self.failed} ({verb}): {said}", where=transport.name, remedy=self.remedy)
        return json.loads(result.stdout) if result.stdout else None


def _run(transport: Transport, script: str, verb: str, words: Sequence[Any], check: bool) -> Result:
    program = call(script, verb, *words).encode()
    return transport.run(shlex.join([*PYTHON, "-"]), sudo=True, check=check, timeout=TIMEOUT, stdin=program)


def reader(verb: str, *words: Any) -> str:
    """The command of a verb of remote.py that reads data from its stdin."""
    return shlex.join([*PYTHON, "-c", call(SCRIPT, verb, *words)])


def call(script: str, verb: str, *words: Any) -> str:
    """A script that runs one verb: its words travel as JSON inside it."""
    return f"{script}\nmain({verb!r}, *json.loads({json.dumps(words)!r}))\n"
