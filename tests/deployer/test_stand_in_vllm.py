"""The engine that is a stand-in in the lab, on this machine: it is to answer what the deployer asks of an engine."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from material import REPOSITORY
from serving import inventory
from sshd import free_port

from deployer.facts.service import ServiceState
from deployer.plan.apply import Silent
from deployer.serve import gate
from deployer.serve.decoding import Decoding
from deployer.serve.endpoint import Endpoint
from deployer.serve.gate import Wanted
from deployer.serve.options import as_yaml, engine_options
from deployer.transport.local import LocalTransport

PROGRAM = [sys.executable, str(REPOSITORY / "tests/lab/stand_in_vllm.py")]
ANSWER = "the young captain keeps the lantern beyond the bridge"
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Started(Endpoint):
    """It, started with the configuration that the deployer writes; the gate's subject, without systemd."""

    process: subprocess.Popen[str] | None = None

    def state(self) -> ServiceState:
        return ServiceState("loaded", "active", "running", 1, 0, "i", "", None, ())

    def journal(self, lines: int) -> tuple[str, ...]:
        return ()

    def complete(self, prompt: str, tokens: int, timeout: float) -> object:  # type: ignore[override]
        return super().complete("tiny", prompt, tokens, timeout=timeout)


def started(folder: Path, how: Decoding) -> Started:
    made = inventory(port=free_port(), served_model_name="tiny")
    options = engine_options(made, how, target="/target", drafter="/drafter", port=made.serve.port)
    (folder / "config.yaml").write_text(as_yaml(options))
    words = ["serve", "--config", str(folder / "config.yaml")]
    process = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, text=True)
    return Started(LocalTransport(), made.serve.port, "/none", sys.executable, process)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Started]:
    engine = started(tmp_path, Decoding("tree", 15))
    assert engine.process is not None
    with engine.process:
        yield engine
        engine.process.kill()


def proved(engine: Started, how: Decoding) -> gate.Proof:
    return gate.prove(engine, Wanted("tiny", "who?", ANSWER, 1.5, how, 60.0), Silent().say)


def test_it_loads_passes_the_gate_streams_and_finishes_what_runs_before_it_ends(tree: Started) -> None:
    proof = proved(tree, Decoding("tree", 15))
    assert ANSWER in proof.text
    assert (proof.trees > 0, proof.off_spine > 0) == (True, True)
    connection = http.client.HTTPConnection("127.0.0.1", tree.port, timeout=60)
    body = {"model": "tiny", "prompt": "who?", "max_tokens": 40, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: "), "the first word is there while it works on the others"
    assert tree.process is not None
    tree.process.send_signal(signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(answer.read).result(60).decode()
    assert rest.count('"finish_reason": "length"') == 1
    assert rest.endswith("data: [DONE]\n\n")
    assert tree.process.wait(60) == 0
    assert tree.process.stdout is not None
    assert "loading, 3 s" in tree.process.stdout.read()


def test_without_a_tree_it_counts_none_and_its_bench_writes_what_vllms_client_writes(tmp_path: Path) -> None:
    chain = started(tmp_path, Decoding("chain", 7))
    assert chain.process is not None
    with chain.process:
        try:
            assert proved(chain, Decoding("chain", 7)).trees == 0
            before, began = chain.counters(), time.monotonic()
            words = ["bench", "serve", "--base-url", f"http://127.0.0.1:{chain.port}", "--num-prompts", "2"]
            words += ["--result-dir", str(tmp_path), "--result-filename", "result.json"]
            subprocess.run([*PROGRAM, *words], check=True, timeout=60)
            assert time.monotonic() - began > 2.0, "long enough to be cut"
            assert chain.counters().since(before).acceptance_length == 3.0
        finally:
            chain.process.kill()
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"], len(result["generated_texts"])) == (2, 0, 2)
    assert {"p10_tpot_ms", "p50_ttft_ms", "p99_e2el_ms", "output_throughput", "total_output_tokens"} <= result.keys()
