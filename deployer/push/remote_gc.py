"""Runs on the host: what lies among the models, who refers to it, and its removal. Standard library only.

Started like remote.py. Nothing is judged here: gc.py does that.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import sys
import time
from typing import Any

FAILED = 74
NOT_TEXT = 4 << 20  # bytes; no unit or configuration is longer


def size_of(path: str) -> int:
    """Bytes of the files beneath `path`, or of one file."""
    if not os.path.isdir(path):
        return os.lstat(path).st_size
    files = (os.path.join(parent, name) for parent, _, names in os.walk(path) for name in names)
    return sum(os.lstat(file).st_size for file in files)


def inodes_of(path: str) -> list[int]:
    """The inodes of the files beneath `path`."""
    files = (os.path.join(parent, name) for parent, _, names in os.walk(path) for name in names)
    return [os.lstat(file).st_ino for file in files]


def mentions(models: str, texts: list[str]) -> dict[str, list[str]]:
    """First name beneath `models` -> the files of `texts` (glob patterns) that name it."""
    pattern = re.compile(re.escape(models.encode()) + rb"/([a-z0-9.-]*[a-z0-9])")
    found: dict[str, list[str]] = {}
    for file in sorted({path for text in texts for path in glob.glob(text)}):
        if os.path.isfile(file) and os.path.getsize(file) < NOT_TEXT:
            with open(file, "rb") as opened:
                for name in set(pattern.findall(opened.read())):
                    found.setdefault(name.decode(), []).append(file)
    return found


def used(models: str) -> dict[str, list[str]]:
    """First name beneath `models` -> processes that have something of it open, mapped or in their command line."""
    pattern = re.compile(re.escape(models) + r"/([^/\0\n]+)")
    found: dict[str, list[str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        said = []
        try:
            for name in ("cmdline", "maps"):
                with open(f"/proc/{pid}/{name}", errors="replace") as file:
                    said.append(file.read())
            said += [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
        except OSError:
            pass  # it ended meanwhile, or is the kernel's
        for name in set(pattern.findall("\n".join(said))):
            found.setdefault(name, []).append(f"process {pid}")
    return found


def survey(models: str, links_elsewhere: list[str], texts: list[str]) -> None:
    """Prints what there is, as JSON: folders, links, the store's entries with their ages, and all who refer."""
    folders: list[list[Any]] = []
    store: list[list[Any]] = []
    links = {link: os.readlink(link) for link in links_elsewhere if os.path.islink(link)}
    for entry in os.scandir(models) if os.path.isdir(models) else ():
        if entry.is_symlink():
            links[entry.path] = os.readlink(entry.path)
        elif entry.is_dir() and entry.path != f"{models}/store":
            folders.append([entry.name, size_of(entry.path), inodes_of(entry.path)])
    for entry in os.scandir(f"{models}/store") if os.path.isdir(f"{models}/store") else ():
        if not entry.is_dir(follow_symlinks=False):
            continue
        newest = max([entry.stat().st_mtime, *(file.stat().st_mtime for file in os.scandir(entry.path))])
        store.append([entry.name, size_of(entry.path), inodes_of(entry.path), time.time() - newest])
    answer = {"folders": folders, "links": links, "store": store}
    print(json.dumps({**answer, "mentions": mentions(models, texts), "used": used(models)}))


def remove(paths: list[str]) -> None:
    """Removes folders; each loses its name at once and its contents after."""
    for path in paths:
        gone = path if path.endswith(".part") else f"{path}.part"
        if gone != path:
            if os.path.isdir(gone):
                shutil.rmtree(gone)
            os.rename(path, gone)
        shutil.rmtree(gone)


def main(verb: str, *words: Any) -> None:
    """One verb; words as its function takes them."""
    try:
        if verb == "survey":
            survey(*words)
        else:
            remove(*words)
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)
