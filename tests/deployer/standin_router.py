"""A stand-in for vllm-router's admin side, on a free port of loopback: the paths that the deployer asks, with the real one's
answers (0.1.17), and a record of what was asked."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from deployer.fleet.api import Api
from deployer.fleet.traffic import Door
from deployer.serve.endpoint import Answer
from deployer.serve.gate import Clock


@dataclass
class StandInRouter:
    """`boxes` maps a URL to whether it is healthy; `dead` are those that do not become so; something else
    that `speaks` answers in its place.
    """

    boxes: dict[str, bool]
    dead: frozenset[str] = frozenset()
    asked: list[str] = field(default_factory=list)
    refusal: str = ""
    speaks: str = ""
    port: int = 0

    def answer(self, path: str, url: str) -> tuple[int, str]:
        if self.refusal or self.speaks:
            return (500, self.refusal) if self.refusal else (200, self.speaks)
        match path:
            case "/workers":
                listed = [{"url": url, "is_healthy": healthy, "load": 0} for url, healthy in self.boxes.items()]
                return 200, json.dumps({"workers": listed, "total": len(listed)})
            case "/remove_worker":
                self.boxes.pop(url, None)
                return 200, f"Successfully removed worker: {url}"
            case "/add_worker" if url in self.boxes:
                return 400, f"Worker {url} already exists"
            case "/add_worker":
                self.boxes[url] = url not in self.dead
                return 200, f"Successfully added worker: {url}"
        return 404, ""


@contextmanager
def listening(router: StandInRouter) -> Iterator[StandInRouter]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            url = parse_qs(asked.query).get("url", [""])[0]
            router.asked.append(f"{self.command} {asked.path} {url}".strip())
            code, text = router.answer(asked.path, url)
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET

        def log_message(self, *words: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        router.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield router
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Here:
    """Asks a port of this machine, as Endpoint asks one of its host."""

    port: int
    where: str = "here"

    def ask(self, path: str, body: Mapping[str, Any] | None = None, *, timeout: float = 10.0) -> Answer:
        method = "GET" if body is None else "POST"
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return Answer(answer.status, answer.read().decode())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode())
        except OSError as error:
            return Answer(0, str(error))


def ticking() -> Clock:
    """Time that passes only by sleeping."""
    now = [0.0]
    return Clock(lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))


def door(router: StandInRouter, *, patience: float = 60.0, name: str = "edge") -> Door:
    @contextmanager
    def opened() -> Iterator[Api]:
        yield Api(Here(router.port))

    return Door(name, opened, patience)
