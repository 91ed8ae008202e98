"""Runs on the host, by the engine's own Python with its huggingface_hub: fetches a model's files into the store.

Started as `python -I remote_fetch.py FOLDER`. In FOLDER: spec.json, what to fetch; record.json, the commit and its
files, written once and kept; status.json, how far it is. A file grows as .part in its place in the store, continued at
its last byte by whoever comes next, and gets its name when its SHA-256 is the hub's.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING or find_spec("deployer"):
    from deployer.hub.remote_failure import Failure, classified
    from deployer.hub.remote_files import File, described, wanted
    from deployer.push import remote
else:  # on the host, where they lie beside this file
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import remote
    from remote_failure import Failure, classified
    from remote_files import File, described, wanted

AT_ONCE = 4  # files
EVERY = 0.5  # seconds between two notes of how far it is


class Progress:
    """How far it is, in status.json, written again and again by a thread of its own."""

    def __init__(self, folder: str) -> None:
        self.folder, self.place = folder, os.path.join(folder, "status.json")
        self.measure: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.one, self.ended = threading.Lock(), False
        self.tell("running")
        threading.Thread(target=self._keep_telling, daemon=True).start()

    def tell(self, state: str, kind: str = "", text: str = "") -> None:
        """Nothing is told after the last word."""
        with self.one:
            if not self.ended:
                self.ended = state != "running"
                done, total = self.measure()
                write(self.place, {"state": state, "done": done, "total": total, "kind": kind, "text": text})

    def _keep_telling(self) -> None:
        while True:
            time.sleep(EVERY)
            self.tell("running")


class Fetch:
    """One fetch of one model."""

    def __init__(self, folder: str, spec: dict[str, Any], token: str | None) -> None:
        from huggingface_hub import HfApi, constants

        constants.DOWNLOAD_CHUNK_SIZE = spec["piece"]
        self.folder, self.spec, self.token = folder, spec, token
        self.api = HfApi(endpoint=spec["endpoint"], token=token or False)
        self.record: dict[str, Any] = {}

    def run(self, progress: Progress) -> None:
        self.record = self.again(self.resolved, lambda: 0)
        progress.measure = self.measure
        self.check_room()
        pool = ThreadPoolExecutor(AT_ONCE)  # not left by `with`: a failure does not wait for what else is on its way
        for fetched in as_completed([pool.submit(self.again, *self.job(file)) for file in self.files]):
            fetched.result()
        self.keep(self.record)

    def job(self, file: File) -> tuple[Callable[[], None], Callable[[], int]]:
        return self.fetcher(file), self.counter(file)

    def keep(self, record: dict[str, Any]) -> None:
        """The record is what a restarted host goes on with: it is on the disk before it counts."""
        place = os.path.join(self.folder, "record.json")
        write(f"{place}.part", record)
        remote.durable(f"{place}.part")
        os.replace(f"{place}.part", place)
        remote.durable(self.folder)

    @property
    def files(self) -> list[File]:
        files: list[File] = self.record["files"]
        return files

    def resolved(self) -> dict[str, Any]:
        """The record of an earlier run, or what the hub says now. A branch is pinned by that."""
        place = os.path.join(self.folder, "record.json")
        if os.path.exists(place):
            with open(place, encoding="utf-8") as file:
                record: dict[str, Any] = json.load(file)
                return record
        repo, asked = self.spec["repo"], self.spec["revision"]
        commit = self.api.model_info(repo, revision=asked).sha
        listed = self.api.list_repo_tree(repo, recursive=True, revision=commit)
        files = [described(entry) for entry in listed if hasattr(entry, "blob_id")]
        when = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        record = {"repo": repo, "revision": asked, "commit": commit, "when": when, "files": wanted(files, self.spec)}
        self.keep(record)
        return record

    def check_room(self) -> None:
        store = self.spec["store"]
        os.makedirs(store, exist_ok=True)
        done, total = self.measure()
        room = os.statvfs(store)
        free, needed = room.f_bavail * room.f_frsize, total - done + self.spec["reserve"]
        if free < needed:
            raise Failure("room", f"{needed} bytes are needed, {free} are free on the file system of {store}")

    def measure(self) -> tuple[int, int]:
        counters = [self.counter(file) for file in self.files]
        return sum(count() for count in counters), sum(file["size"] for file in self.files)

    def counter(self, file: File) -> Callable[[], int]:
        """How many bytes of a file are here."""

        def count() -> int:
            if not file["sha256"]:
                return 0
            final = self.stored(file)
            for path in (final, f"{final}.part"):
                if os.path.exists(path):
                    return min(int(file["size"]), os.path.getsize(path))
            return 0

        return count

    def stored(self, file: File) -> str:
        place: str = os.path.join(self.spec["store"], file["sha256"], file["name"].rpartition("/")[2])
        return place

    def fetcher(self, file: File) -> Callable[[], None]:
        def fetch() -> None:
            if file["sha256"] in self.spec["have"]:
                return
            if file["git"]:
                self.fetch_small(file)
            else:
                self.fetch_large(file)

        return fetch

    def fetch_small(self, file: File) -> None:
        """One that git keeps: its hash there is the proof, its SHA-256 is made here."""
        body = io.BytesIO()
        self.get(file, body, 0)
        data = body.getvalue()
        if git_hash(data) != file["git"]:
            raise Failure("damaged", f"{file['name']}: {len(data)} bytes with another hash than the hub's")
        file["sha256"] = hashlib.sha256(data).hexdigest()
        final = self.stored(file)
        os.makedirs(os.path.dirname(final), exist_ok=True)
        with open(f"{final}.part", "wb") as part:
            part.write(data)
        remote.publish(f"{final}.part", final, file["sha256"])

    def fetch_large(self, file: File) -> None:
        final = self.stored(file)
        part = f"{final}.part"
        os.makedirs(os.path.dirname(final), exist_ok=True)
        found = self.grown(file, part, os.path.getsize(part) if os.path.exists(part) else 0)
        if found != file["sha256"]:
            # What lay there may have been another's: once more from the first byte, and then it is the hub's.
            found = self.grown(file, part, 0)
        if found != file["sha256"]:
            os.unlink(part)
            raise Failure("damaged", f"{file['name']}: its SHA-256 is {found}, the hub says {file['sha256']}")
        remote.publish(part, final, file["sha256"], found)

    def grown(self, file: File, part: str, start: int) -> str:
        """The SHA-256 of the whole file, when the rest from byte `start` on has come."""
        start = start if start <= file["size"] else 0
        with open(part, "ab") as opened:
            opened.truncate(start)
            opened.seek(start)
            self.get(file, opened, start)
        return remote.digest(part)

    def get(self, file: File, into: BinaryIO, start: int) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        # Not the storage's own address, which is good for an hour: each request is led there anew.
        url = hf_hub_url(
            self.spec["repo"], file["name"], revision=self.record["commit"], endpoint=self.spec["endpoint"]
        )
        headers = build_hf_headers(token=self.token or False)
        # Compressed on its way, its length would not be the file's.
        http_get(
            url,
            into,
            resume_size=start,
            headers={**headers, "Accept-Encoding": "identity"},
            expected_size=file["size"],
            displayed_filename=file["name"],
        )

    def again(self, action: Callable[[], Any], count: Callable[[], int]) -> Any:
        """Carries it out, again after a fault of the line, until so many attempts in a row have brought nothing."""
        fruitless, best = 0, count()
        while True:
            try:
                return action()
            except Exception as error:
                failure = classified(error)
                now = count()
                fruitless, best = (0, now) if now > best else (fruitless + 1, best)
                if failure.kind not in {"network", "busy"} or fruitless >= self.spec["attempts"]:
                    raise failure from error
                time.sleep(min(self.spec["longest"], 0.5 * 2**fruitless))


def git_hash(data: bytes) -> str:
    """The name that git gives to a file's contents."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def write(place: str, document: dict[str, Any]) -> None:
    """A whole file or the one before it."""
    part = f"{place}.{threading.get_ident()}"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(part, place)


def taken(place: str | None) -> str | None:
    """The token. Its file is gone once it was read."""
    if not place:
        return None
    with open(place, encoding="utf-8") as file:
        token = file.read()
    os.unlink(place)
    return token


def main(folder: str) -> None:
    """Fetches; however it ends, status.json says how."""
    os.umask(0o022)
    with open(os.path.join(folder, "spec.json"), encoding="utf-8") as file:
        spec = json.load(file)
    token = taken(spec["token"])
    # Read when huggingface_hub is imported. Its own chunked protocol continues nothing after a restart.
    os.environ.update(HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_IMPLICIT_TOKEN="1")
    os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_VERBOSITY="error", HF_ENDPOINT=spec["endpoint"])
    os.environ.update(HF_HOME=os.path.join(folder, "home"))
    progress = Progress(folder)
    try:
        Fetch(folder, spec, token).run(progress)
    except Exception as error:
        failure = classified(error)
        progress.tell("failed", failure.kind, str(failure))
        os._exit(1)  # other files may be on their way: they are continued
    progress.tell("done")


if __name__ == "__main__":
    main(sys.argv[1])
