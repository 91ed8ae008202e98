#!/usr/bin/python3
"""A stand-in for `vllm serve --config FILE` in a release's venv: an engine that answers every prompt with the same words, 20
tokens a second. It reads the config as vLLM does, counts its requests, drafts and trees as vLLM does, and on SIGTERM it
listens no more, finishes what runs, and ends. Standard library only: it runs in the lab.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ANSWER = "the young captain keeps the lantern beyond the bridge"
SECONDS_PER_TOKEN = 0.05
COUNTED = ("spec_decode_num_drafts_total", "ddtree_trees_total", "ddtree_nodes_total")


class Engine:
    """How many requests run, and how many steps were taken."""

    def __init__(self) -> None:
        self.running, self.steps = 0, 0
        self.lock = threading.Lock()

    def begins(self) -> None:
        with self.lock:
            self.running += 1

    def ends(self) -> None:
        with self.lock:
            self.running -= 1

    def tokens(self, number: int) -> list[str]:
        words = (ANSWER.split() * number)[:number]
        return [f" {word}" for word in words]

    def step(self) -> None:
        time.sleep(SECONDS_PER_TOKEN)
        with self.lock:
            self.steps += 1

    def metrics(self) -> str:
        counted = "".join(f"vllm:{name} {self.steps}\n" for name in COUNTED)
        accepted = f"vllm:spec_decode_num_accepted_tokens_total {3 * self.steps}\n"
        return f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting 0\n{counted}{accepted}"


def main(config: str) -> None:
    pairs = (line.partition(": ") for line in Path(config).read_text(encoding="utf-8").splitlines() if line)
    options: dict[str, Any] = {key: json.loads(value) for key, _, value in pairs}
    engine = Engine()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self.whole(engine.metrics())
            elif self.path == "/v1/models":
                self.whole(json.dumps({"data": [{"id": options["served-model-name"][0]}]}))
            else:
                self.whole("{}")

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            engine.begins()
            try:
                (self.stream if asked.get("stream") else self.plain)(engine.tokens(asked["max_tokens"]))
            finally:
                engine.ends()

        def plain(self, tokens: list[str]) -> None:
            for _ in tokens:
                engine.step()
            choice = {"text": "".join(tokens), "finish_reason": "length"}
            self.whole(json.dumps({"choices": [choice], "usage": {"completion_tokens": len(tokens)}}))

        def stream(self, tokens: list[str]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number, token in enumerate(tokens, start=1):
                engine.step()
                finish = "length" if number == len(tokens) else None
                self.chunk(f"data: {json.dumps({'choices': [{'text': token, 'finish_reason': finish}]})}\n\n")
            self.chunk(f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': len(tokens)}})}\n\n")
            self.chunk("data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

        def whole(self, text: str) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def chunk(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def log_message(self, *words: object) -> None: ...

    server = ThreadingHTTPServer((options["host"], options["port"]), Handler)
    server.daemon_threads = True

    def end(number: int, frame: object) -> None:
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, end)
    server.serve_forever(poll_interval=0.1)
    server.server_close()
    deadline = time.monotonic() + options["shutdown-timeout"]
    while engine.running and time.monotonic() < deadline:
        time.sleep(0.05)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[sys.argv.index("--config") + 1])
