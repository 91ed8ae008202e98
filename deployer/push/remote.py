"""Runs on the host: digests, arrival, publication. Standard library only.

The caller appends a call of main() to this text and gives it to python3, so that names meet neither a shell nor the
limits of a command line. What goes wrong with a file is one line on stderr and exit code 74; damage is 65.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

DAMAGED = 65
FAILED = 74
BLOCK = 1 << 22
PIECE = 1 << 20
EVERY = 0.5  # seconds between two words of how far it is
REMEMBERED = 10_000  # files
AHEAD = 8  # pieces that may be written and not yet hashed


def digest(path: str, length: int | None = None, told: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file, or of its first `length` bytes; `told` hears of each count of bytes that was read."""
    sha, left = hashlib.sha256(), length
    with open(path, "rb", buffering=0) as file:
        while left is None or left > 0:
            block = file.read(BLOCK if left is None else min(BLOCK, left))
            if not block:
                break
            sha.update(block)
            left = None if left is None else left - len(block)
            if told:
                told(len(block))
    return sha.hexdigest()


def identity(path: str) -> str:
    """Another one after every change: the last of its times cannot be set back."""
    status = os.stat(path)
    return ":".join(map(str, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)))


def recall(memory: str) -> dict[str, str]:
    """identity -> SHA-256 of files that were read before; only root can write there."""
    try:
        with open(memory, encoding="utf-8") as file:
            known: dict[str, str] = json.load(file)
            return known
    except (OSError, ValueError):
        return {}


def remember(memory: str, known: dict[str, str]) -> None:
    """Best effort: what is not remembered is read again."""
    try:
        os.makedirs(os.path.dirname(memory), exist_ok=True)
        with open(f"{memory}.{os.getpid()}", "w", encoding="utf-8") as file:
            json.dump(dict(list(known.items())[-REMEMBERED:]), file)
        os.replace(f"{memory}.{os.getpid()}", memory)
    except OSError:
        pass


def durable(path: str) -> None:
    """Forces a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digests(paths: list[str]) -> None:
    """Prints {path: [size, sha256]} of those that are files."""
    print(json.dumps({path: [os.path.getsize(path), digest(path)] for path in paths if os.path.isfile(path)}))


def survey(paths: list[str], parts: list[str], link: str, memory: str) -> None:
    """Prints, as JSON, {path: [identity, size, SHA-256 if it is remembered]} of those that are files, the sizes of
    `parts`, and where `link` points: "folder" for a real folder, or empty.
    """
    known = recall(memory) if memory else {}
    files = {path: [identity(path), os.path.getsize(path)] for path in paths if os.path.isfile(path)}
    found = {path: [*seen, known.get(str(seen[0]), "")] for path, seen in files.items()}
    sizes = {part: os.path.getsize(part) for part in parts if os.path.isfile(part)}
    points = os.readlink(link) if os.path.islink(link) else "folder" if os.path.exists(link) else ""
    print(json.dumps({"files": found, "parts": sizes, "link": points}))


def read(paths: list[str], memory: str) -> None:
    """Prints lines of JSON: how many bytes were read, now and then, and {path: SHA-256} at last."""
    done, said = 0, time.monotonic()

    def told(count: int) -> None:
        nonlocal done, said
        done += count
        if time.monotonic() - said > EVERY:
            said = time.monotonic()
            print(json.dumps({"read": done}), flush=True)

    found, known = {}, recall(memory)
    for path in paths:
        before = identity(path)
        found[path] = digest(path, None, told)
        if identity(path) == before:
            known[before] = found[path]
    remember(memory, known)
    print(json.dumps({"found": found}))


def prefix(path: str, length: int) -> None:
    """Prints the SHA-256 of the first `length` bytes."""
    print(digest(path, length))


def receive(part: str, start: int) -> None:
    """Writes stdin into `part` from byte `start` on. By position, never by appending: what an older sender, cut off
    and not yet dead, still delivers are the same bytes at the same places.

    A file from its first byte on is hashed on its way, beside the writing, and its SHA-256 printed.
    """
    handle = os.open(part, os.O_WRONLY | os.O_CREAT, 0o644)
    os.lseek(handle, start, os.SEEK_SET)
    sha = hashlib.sha256()
    with ThreadPoolExecutor(1) as hashing:
        pending: deque[Future[None]] = deque()
        # As they come they are small: handed over one by one they would cost more than their hash.
        blocks, held = list[bytes](), 0
        while block := os.read(0, PIECE):
            if not start:
                blocks.append(block)
                held += len(block)
            if held >= PIECE:
                pending.append(hashing.submit(_update, sha, blocks))
                blocks, held = [], 0
            view = memoryview(block)
            while view:
                view = view[os.write(handle, view) :]
            while len(pending) > AHEAD:
                pending.popleft().result()
        hashing.submit(_update, sha, blocks)
    if not start:
        print(sha.hexdigest())


def _update(sha: hashlib._Hash, blocks: list[bytes]) -> None:
    for block in blocks:
        sha.update(block)


def publish(part: str, final: str, expected: str, found: str = "", memory: str = "") -> None:
    """Gives a complete file its name; nothing else ever does. Exits with DAMAGED and removes `part` when it is not.
    `found` is its digest, if it was hashed as it was written; else it is read. `memory` keeps it, if named.
    """
    found = found or digest(part)
    if found != expected:
        os.unlink(part)
        print(f"{part}: sha256 {found}, expected {expected}", file=sys.stderr)
        sys.exit(DAMAGED)
    os.chown(part, os.geteuid(), os.getegid())
    os.chmod(part, 0o644)
    durable(part)
    os.replace(part, final)
    durable(os.path.dirname(final))
    if memory:
        remember(memory, {**recall(memory), identity(final): found})


def unpack() -> None:
    """Reads small files from stdin: a line of JSON with [final path, size, sha256] each, then their bytes. What is
    cut off stays a .part, the files before it are published.
    """
    for final, size, expected in json.loads(sys.stdin.buffer.readline() or "[]"):
        os.makedirs(os.path.dirname(final), exist_ok=True)
        part = f"{final}.part"
        with open(part, "wb") as file:
            file.write(sys.stdin.buffer.read(size))
        if os.path.getsize(part) < size:
            sys.exit("the input ended early")
        publish(part, final, expected)


def assemble(folder: str, files: list[list[str]], texts: dict[str, str], memory: str) -> None:
    """Makes a model's folder: hard links [name, stored path], texts by name. A new one appears by one rename; in one
    that is there each wrong file is replaced by a rename, so that it is never absent. A link is a change of its file
    that changes no byte: what was remembered of it is remembered on.
    """
    there, known = os.path.isdir(folder), recall(memory)
    place = folder if there else f"{folder}.part"
    if not there:
        _remove(place)
    for name, stored in files:
        path = _parent_made(place, name)
        if not (os.path.exists(path) and os.path.samefile(path, stored)):
            _remove(f"{path}.part")
            sha = known.get(identity(stored))
            os.link(stored, f"{path}.part")
            os.replace(f"{path}.part", path)
            known |= {identity(stored): sha} if sha else {}
    for name, text in texts.items():
        path = _parent_made(place, name)
        with open(f"{path}.part", "w", encoding="utf-8", newline="") as file:
            file.write(text)
        durable(f"{path}.part")
        os.replace(f"{path}.part", path)
    for parent, _, _ in os.walk(place, topdown=False):
        durable(parent)
    if not there:
        os.rename(place, folder)
    durable(os.path.dirname(folder))
    remember(memory, known)


def _parent_made(place: str, name: str) -> str:
    path = os.path.join(place, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def _remove(path: str) -> None:
    """Removes a file, a link or a whole folder, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        for entry in os.scandir(path):
            _remove(entry.path)
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)


def main(verb: str, *words: Any) -> None:
    """One verb; words as its function takes them."""
    os.umask(0o022)
    verbs = {
        function.__name__: function for function in (digests, survey, read, prefix, receive, publish, unpack, assemble)
    }
    try:
        verbs[verb](*words)
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)
