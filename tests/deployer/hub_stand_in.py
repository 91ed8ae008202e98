"""A stand-in for the Hugging Face Hub on loopback: what huggingface_hub asks of it when models are fetched.

Served are revisions, listings and files; large files (LFS) are redirected to a storage under another host name, as the
hub does it. It cuts lines, refuses, and serves wrong bytes where told to.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin")


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Asked:
    """One request. `range` and `token` are its headers, empty when absent."""

    path: str
    host: str
    range: str
    token: str


@dataclass
class StandInHub:
    """One repository. `cuts` are counts of bytes after which a download's line is cut, one download after the other."""

    repo: str
    folder: Path
    commit: str = COMMIT
    branches: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    token: str = ""  # asked for, if not empty
    gated: bool = False
    busy: int = 0  # so many requests are answered with 503 first
    cuts: list[int] = field(default_factory=list)
    wrong: dict[str, bytes] = field(default_factory=dict)  # served in place of a file, under its hash
    slow: threading.Event | None = None  # waited for in the middle of each large file
    asked: list[Asked] = field(default_factory=list)
    port: int = 0  # any free one

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def files(self) -> dict[str, bytes]:
        found = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}
        return {name: path.read_bytes() for name, path in sorted(found.items())}

    def listing(self) -> list[dict[str, object]]:
        listed: list[dict[str, object]] = []
        for name, data in self.files.items():
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": git_hash(data)}
            if name.endswith(LARGE):
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            listed.append(entry)
        return listed

    @property
    def downloads(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.path.startswith(("/storage/", f"/{self.repo}/resolve/"))]

    @contextmanager
    def serving(self) -> Iterator[StandInHub]:
        hub = self

        class Handler(_Handler):
            standing_in = hub

        with ThreadingHTTPServer(("127.0.0.1", self.port), Handler) as server:
            server.daemon_threads = True
            self.port = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


class _Handler(BaseHTTPRequestHandler):
    standing_in: StandInHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        hub, path = self.standing_in, unquote(urlsplit(self.path).path)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        hub.asked.append(Asked(path, self.headers.get("Host", ""), self.headers.get("Range", ""), token))
        if path.startswith("/storage/"):
            self._body(path.removeprefix("/storage/"))
        elif hub.busy > 0:
            hub.busy -= 1
            self._refuse(503, "", "busy")
        elif not self._may(path, token):
            pass
        elif match := re.fullmatch(f"/api/models/{hub.repo}/revision/(.+)", path):
            commit = self._commit(match[1])
            if commit:
                self._json({"id": hub.repo, "sha": commit, "siblings": []})
        elif re.fullmatch(f"/api/models/{hub.repo}/tree/{hub.commit}", path):
            self._json(hub.listing())
        elif match := re.fullmatch(f"/{hub.repo}/resolve/{hub.commit}/(.+)", path):
            self._file(match[1])
        else:
            self._refuse(404, "EntryNotFound", "no such thing")

    def _may(self, path: str, token: str) -> bool:
        hub = self.standing_in
        if hub.repo not in path:
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif hub.token and token != hub.token:
            self._refuse(401, "GatedRepo" if hub.gated else "RepoNotFound", "Access to this model is restricted")
        elif hub.gated and not hub.token:
            self._refuse(403, "GatedRepo", "Access to this model is restricted, you are not on its list")
        else:
            return True
        return False

    def _commit(self, revision: str) -> str | None:
        hub = self.standing_in
        commit = hub.branches.get(revision, revision if revision == hub.commit else None)
        if commit is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def _file(self, name: str) -> None:
        hub = self.standing_in
        if name not in hub.files:
            self._refuse(404, "EntryNotFound", "Entry not found")
        elif name.endswith(LARGE):
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{hub.port}/storage/{name}")
            self.send_header("X-Repo-Commit", hub.commit)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._body(name)

    def _body(self, name: str) -> None:
        hub = self.standing_in
        data = hub.wrong.get(name, hub.files[name])
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.end_headers()
        rest = data[start:]
        cut = hub.cuts.pop(0) if hub.cuts and name.endswith(LARGE) else None
        half = len(rest) // 2 if cut is None else cut
        self.wfile.write(rest[:half])
        self.wfile.flush()
        if cut is not None and cut < len(rest):
            self.close_connection = True
            self.connection.close()
            return
        if hub.slow and name.endswith(LARGE):
            hub.slow.wait(60)
        self.wfile.write(rest[half:])

    def _json(self, document: object) -> None:
        text = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _refuse(self, status: int, code: str, message: str) -> None:
        text = json.dumps({"error": message}).encode()
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
