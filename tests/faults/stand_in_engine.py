"""A STAND-IN for vLLM's command, to play many cells in little time: it is put in the place of a release's bin/vllm.

It reads the same configuration, takes seconds to "load", answers what the gate and the bench ask, and counts drafts and
trees as the configuration says. It computes nothing; what is tested with it is the deployer.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

LOADS = 4.0  # seconds
ANSWER = " the young captain keeps the lantern beyond the bridge"
COUNTERS = {
    "chain": ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total"),
    "tree": ("vllm:ddtree_trees_total", "vllm:ddtree_nodes_total", "vllm:ddtree_accepted_off_spine_total"),
}


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def serve() -> None:
    lines = (line.partition(": ") for line in Path(option("--config")).read_text().splitlines())
    options = {key: json.loads(value) for key, _, value in lines if value}
    names = [] if "speculative-config" not in options else list(COUNTERS["chain"])
    names += COUNTERS["tree"] if "worker-cls" in options else []
    counted = {"drafts": 0}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self.say("".join(f"{name} {counted['drafts'] * (4 if 'accepted' in name else 1)}\n" for name in names))
            else:
                self.say(json.dumps({"data": [{"id": options["served-model-name"][0]}]}))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            counted["drafts"] += 10
            time.sleep(0.2)
            self.say(json.dumps({"choices": [{"text": ANSWER}]}))

        def say(self, text: str) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

    for second in range(int(LOADS)):
        print(f"stand-in engine: loading, {second} s", flush=True)
        time.sleep(1.0)
    ThreadingHTTPServer(("127.0.0.1", options["port"]), Handler).serve_forever()


def bench() -> None:
    for _ in range(int(option("--num-prompts"))):
        urlopen(option("--base-url") + "/v1/completions", b"{}", timeout=60).read()
        time.sleep(1.0)
    asked = int(option("--num-prompts"))
    numbers = {"completed": asked, "failed": 0, "duration": float(asked), "output_throughput": 32.0}
    numbers |= {"total_input_tokens": 4 * asked, "total_output_tokens": 32 * asked, "generated_texts": [ANSWER] * asked}
    times = {f"p{rank}_{name}_ms": 5.0 for rank in (10, 50, 90, 99) for name in ("ttft", "tpot", "e2el")}
    Path(option("--result-dir"), option("--result-filename")).write_text(json.dumps({**numbers, **times}))


if __name__ == "__main__":
    {"serve": serve, "bench": bench}[sys.argv[1]]()
