#!/usr/bin/python3
"""A STAND-IN for vLLM's command in a release's venv, to play many deployments in little time. It computes nothing: what is
tested with it is the deployer.

`serve --config FILE` reads the config as vLLM does, takes seconds to "load", answers every prompt with the same words, 20
tokens a second, and counts its requests, drafts and trees as the config says; on SIGTERM it listens no more, finishes what
runs, and ends. `bench serve` asks it, and writes such numbers as vLLM's client writes. Standard library only: it runs in
the lab.
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
from urllib.request import urlopen

ANSWER = "the young captain keeps the lantern beyond the bridge"
LOADS = 4  # seconds
SECONDS_PER_TOKEN = 0.05
TOKENS = 10  # where nobody says how many
DRAFTS = ("spec_decode_num_drafts_total", "spec_decode_num_accepted_tokens_total")
TREES = ("ddtree_trees_total", "ddtree_nodes_total", "ddtree_accepted_off_spine_total")
# Tokens accepted a step. The real engine's, on the tiny pair, are 2.1 and 2.4: measured beside them, too, a tree is the better.
CHAIN, TREE = 2, 3


class Engine:
    """How many requests run, and how many steps were taken, by these options."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.model = options["served-model-name"][0]
        self.counted = DRAFTS if "speculative-config" in options else ()
        self.counted += TREES if "worker-cls" in options else ()
        self.accepted = TREE if "worker-cls" in options else CHAIN
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
        counted = "".join(
            f"vllm:{name} {self.steps * (self.accepted if 'accepted' in name else 1)}\n" for name in self.counted
        )
        return f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting 0\n{counted}"


def serve() -> None:
    pairs = (line.partition(": ") for line in Path(option("--config")).read_text(encoding="utf-8").splitlines() if line)
    options: dict[str, Any] = {key: json.loads(value) for key, _, value in pairs}
    engine = Engine(options)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self.whole(engine.metrics())
            elif self.path == "/v1/models":
                self.whole(json.dumps({"data": [{"id": engine.model}]}))
            else:
                self.whole("{}")

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            engine.begins()
            try:
                (self.stream if asked.get("stream") else self.plain)(engine.tokens(asked.get("max_tokens", TOKENS)))
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

    for second in range(LOADS):
        print(f"stand-in engine: loading, {second} s", flush=True)
        time.sleep(1.0)
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


def bench() -> None:
    asked = int(option("--num-prompts"))
    for _ in range(asked):
        urlopen(option("--base-url") + "/v1/completions", b"{}", timeout=60).read()
        time.sleep(1.0)
    numbers = {"completed": asked, "failed": 0, "duration": float(asked), "output_throughput": 32.0}
    answers = {"generated_texts": [f" {ANSWER}"] * asked}
    numbers |= {"total_input_tokens": 4 * asked, "total_output_tokens": 32 * asked}
    times = {f"p{rank}_{name}_ms": 5.0 for rank in (10, 50, 90, 99) for name in ("ttft", "tpot", "e2el")}
    Path(option("--result-dir"), option("--result-filename")).write_text(json.dumps({**numbers, **answers, **times}))


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


if __name__ == "__main__":
    {"serve": serve, "bench": bench}[sys.argv[1]]()
