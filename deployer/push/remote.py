"""Runs on the host: digests, arrival, publication. Standard library only.

The caller appends a call of main() to this text and gives it to python3, so that names meet neither a shell nor the
limits of a command line. What goes wrong with a file is one line on stderr and exit code 74; damage is 65.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

DAMAGED = 65
FAILED = 74
BLOCK = 1 << 22


def digest(path: str, length: int | None = None) -> str:
    """SHA-256 of a file, or of its first `length` bytes."""
    sha, left = hashlib.sha256(), length
    with open(path, "rb", buffering=0) as file:
        while left is None or left > 0:
            block = file.read(BLOCK if left is None else min(BLOCK, left))
            if not block:
                break
            sha.update(block)
            left = None if left is None else left - len(block)
    return sha.hexdigest()


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


def look(wanted: dict[str, str], stored: dict[str, str], link: str) -> None:
    """Prints what is there of a model, as JSON. `wanted` is path -> sha256 of its folder, `stored` sha256 -> path of
    the store, which is looked at only when the folder is not complete. `link` is where it points, "folder" for a real
    folder, or empty.
    """
    complete = all(os.path.isfile(path) and digest(path) == sha for path, sha in wanted.items())
    asked = {} if complete else stored
    good = [sha for sha, path in asked.items() if os.path.isfile(path) and digest(path) == sha]
    left = {sha: f"{path}.part" for sha, path in asked.items() if sha not in good}
    parts = {sha: os.path.getsize(part) for sha, part in left.items() if os.path.isfile(part)}
    points = os.readlink(link) if os.path.islink(link) else "folder" if os.path.exists(link) else ""
    print(json.dumps({"complete": complete, "stored": good, "parts": parts, "link": points}))


def prefix(path: str, length: int) -> None:
    """Prints the SHA-256 of the first `length` bytes."""
    print(digest(path, length))


def receive(part: str, start: int) -> None:
    """Writes stdin into `part` from byte `start` on. By position, never by appending: what an older sender, cut off
    and not yet dead, still delivers are the same bytes at the same places.
    """
    handle = os.open(part, os.O_WRONLY | os.O_CREAT, 0o644)
    if start:
        os.lseek(handle, start, os.SEEK_SET)
    while block := os.read(0, BLOCK):
        view = memoryview(block)
        while view:
            view = view[os.write(handle, view) :]


def publish(part: str, final: str, expected: str) -> None:
    """Gives a complete file its name; nothing else ever does. Exits with DAMAGED and removes `part` when it is not."""
    found = digest(part)
    if found != expected:
        os.unlink(part)
        print(f"{part}: sha256 {found}, expected {expected}", file=sys.stderr)
        sys.exit(DAMAGED)
    os.chmod(part, 0o644)
    durable(part)
    os.replace(part, final)
    durable(os.path.dirname(final))


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


def assemble(folder: str, files: list[list[str]], texts: dict[str, str]) -> None:
    """Makes a model's folder: hard links [name, stored path], texts by name. A new one appears by one rename; in one
    that is there each wrong file is replaced by a rename, so that it is never absent.
    """
    there = os.path.isdir(folder)
    place = folder if there else f"{folder}.part"
    if not there:
        _remove(place)
    for name, stored in files:
        path = _parent_made(place, name)
        if not (os.path.exists(path) and os.path.samefile(path, stored)):
            _remove(f"{path}.part")
            os.link(stored, f"{path}.part")
            os.replace(f"{path}.part", path)
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
    verbs = {function.__name__: function for function in (digests, look, prefix, receive, publish, unpack, assemble)}
    try:
        verbs[verb](*words)
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)
