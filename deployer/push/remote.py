"""Runs on the host (python3 - VERB ..., this file as its input): digests and publication. Standard library only.

digests NAME...            prints {"NAME": [size, sha256]} as JSON for those that are files
prefix PATH LENGTH         prints the SHA-256 of the first LENGTH bytes
publish PART FINAL SHA256  checks PART, makes it durable, renames it; exits 65 and removes PART when it is damaged
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

DAMAGED = 65
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


def publish(part: str, final: str, expected: str) -> None:
    """Gives a complete file its name; nothing else ever does."""
    found = digest(part)
    if found != expected:
        os.unlink(part)
        print(f"sha256 {found}, expected {expected}", file=sys.stderr)
        sys.exit(DAMAGED)
    os.chmod(part, 0o644)
    durable(part)
    os.replace(part, final)
    durable(os.path.dirname(final))


def main(verb: str, *words: str) -> None:
    if verb == "digests":
        print(json.dumps({name: [os.path.getsize(name), digest(name)] for name in words if os.path.isfile(name)}))
    elif verb == "prefix":
        print(digest(words[0], int(words[1])))
    elif verb == "publish":
        publish(*words)
    else:
        sys.exit(f"unknown verb {verb}")


if __name__ == "__main__":
    main(*sys.argv[1:])
