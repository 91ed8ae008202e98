"""One vLLM process: loads a pair in one arm, answers requests in batches, notes what every step brought.

usage: python -m benchmarks.pairs.engine ASK.json ANSWER.json SECONDS PARENT     (called by `answered`, whose process PARENT is)
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
WORKERS = {"cpu": "ddtree_ext.engine.cpu_worker.DDTreeCPUWorker", "cuda": "ddtree_ext.engine.worker.DDTreeWorker"}
WIDTH = 15
LEAST = 60.0
"""Seconds that an engine answers for, however long it took to load."""


@dataclass(frozen=True)
class Turn:
    """One pass over `groups`, `batch` requests at a time, whose answers are of `arm`; `nodes`: of a request's tree at most, 0: the
    engine's budget.
    """

    arm: str
    batch: int
    groups: list[int]
    nodes: int = 0


@dataclass(frozen=True)
class Ask:
    """One engine: `arm` is ar, chain:K (stock DFlash) or tree:B; ar and chain run with the extension absent.

    `groups` [group][request] are prompts as token ids; `heats` the temperature of each group; requests end at the end
    token or after `new` tokens. At most `batch` requests run at a time. `together`: a turn's groups run mixed, not one after
    the other. After `seconds` (0: never) from the start of the process, LEAST after it has loaded, what is not done is cut where
    it is. `stamp`: of the pair, so that an answer of another one is not taken for this one's.
    """

    arm: str
    pair: str
    device: str
    groups: list[list[list[int]]]
    heats: list[float]
    new: int
    batch: int
    turns: list[Turn]
    max_model_len: int = 1024
    seed: int = 7
    eager: bool = True
    together: bool = False
    seconds: float = 0.0
    stamp: str = ""

    @property
    def kind(self) -> str:
        return self.arm.partition(":")[0]

    @property
    def nodes(self) -> int:
        return int(self.arm.partition(":")[2] or 0)


@dataclass
class Answer:
    """Per group of a turn and request: token ids, and how many came with each engine step (the prefill's first). `trees`: the
    extension's counters by group. Groups that the turn does not have are empty.
    """

    tokens: list[list[list[int]]] = field(default_factory=list)
    gains: list[list[list[int]]] = field(default_factory=list)
    trees: list[dict[str, float]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def options(ask: Ask) -> dict[str, Any]:
    """Arguments of vllm.LLM. Eager as a rule: acceptance is measured here, not time, and an eager engine loads in seconds."""
    chosen: dict[str, Any] = {
        "model": str(Path(ask.pair) / "target"),
        "dtype": "bfloat16",
        "max_model_len": ask.max_model_len,
        "max_num_seqs": ask.batch,
        "max_num_batched_tokens": max(8192 if ask.device == "cuda" else 512, ask.batch * (1 + 2 * ask.nodes)),
        "enforce_eager": ask.eager,
        "kv_cache_memory_bytes": 6 << 30
        if ask.device == "cuda"
        else 256 << 20,  # given, so that engines can share a card
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "seed": 0,
    }
    additional: dict[str, Any] = {}
    if ask.device == "cuda":
        chosen |= {"attention_backend": "FLASH_ATTN", "gpu_memory_utilization": 0.08}
        additional["gdn_prefill_backend"] = "triton"
    if ask.kind != "ar":
        folder = str(Path(ask.pair) / "drafter")
        drafter: dict[str, Any] = {"method": "dflash", "model": folder, "num_speculative_tokens": ask.nodes}
        if ask.device == "cuda":
            drafter["attention_backend"] = "FLASH_ATTN"
        chosen["speculative_config"] = drafter
    if ask.kind == "tree":
        chosen |= {"worker_cls": WORKERS[ask.device], "attention_backend": "CUSTOM"}
        additional["ddtree"] = {"topk": 16}
    return chosen | {"additional_config": additional}


def environment(ask: Ask) -> dict[str, str]:
    """The process's environment."""
    return alone(ask.device, plugins=ask.kind == "tree") | {"VLLM_USE_FLASHINFER_SAMPLER": "0"}


def alone(device: str, *, plugins: bool) -> dict[str, str]:
    """The environment of an engine on cpu or cuda: offline, one process, loopback; vLLM's plugins only with `plugins`."""
    kept = {name: value for name, value in os.environ.items() if name not in ("DDTREE_COUNTERS_DIR", "VLLM_PLUGINS")}
    kept |= {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "PYTHONPATH": os.pathsep.join([str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    if device == "cpu":
        kept |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    if not plugins:
        kept["VLLM_PLUGINS"] = "none"  # names no plugin
    return kept


def answered(ask: Ask, folder: Path, limit: float) -> tuple[dict[str, Answer], dict[str, str]]:
    """Runs the engine in a fresh process: answers by arm of the turns that ended, and by arm why the others did not.

    Turns that an earlier process answered to the same question are not run again. The engine's output stays in FOLDER.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = ask.arm.replace(":", "-")
    asked, answer, said = (folder / f"{name}.{part}" for part in ("ask.json", "answer.json", "log"))
    question = json.dumps(asdict(ask) | {"seconds": 0.0})
    if not asked.is_file() or asked.read_text() != question:
        answer.unlink(missing_ok=True)
    asked.write_text(question)
    if {turn.arm for turn in ask.turns} <= set(_held(answer)):
        return _held(answer), {}
    command = [
        sys.executable,
        "-m",
        "benchmarks.pairs.engine",
        str(asked),
        str(answer),
        str(ask.seconds),
        str(os.getpid()),
    ]
    error = _run(command, environment(ask), said, limit) or "it ended without an answer"
    found = _held(answer)
    missing = [turn.arm for turn in ask.turns if turn.arm not in found]
    return found, {arm: f"{error}: {_tail(said)}" for arm in missing}


def _held(answer: Path) -> dict[str, Answer]:
    if not answer.is_file():
        return {}
    return {arm: Answer(**found) for arm, found in json.loads(answer.read_text()).items()}


def _tail(said: Path) -> str:
    return said.read_text(errors="replace")[-6000:] if said.is_file() else ""


def _run(command: list[str], environment: dict[str, str], said: Path, limit: float) -> str:
    """Why the process did not end well, or ""; after `limit` seconds it is ended with all that it began."""
    with said.open("w") as log:
        process = subprocess.Popen(command, cwd=REPO, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"no end after {limit:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return f"exit code {code}" if code else ""


def counters() -> dict[str, float]:
    """Totals of the tree's own counters; empty where the extension is absent."""
    from prometheus_client import REGISTRY

    return {
        sample.name.removeprefix("vllm:ddtree_").removesuffix("_total"): sample.value
        for family in REGISTRY.collect()
        if family.name.startswith("vllm:ddtree_") and "per_" not in family.name
        for sample in family.samples
    }


class Pass:
    """The requests of some groups: who waits, who runs, and what each got."""

    def __init__(self, llm: Any, ask: Ask, turn: Turn, groups: list[int], until: float) -> None:
        self.engine, self.ask, self.turn, self.until = llm.llm_engine, ask, turn, until
        waiting = [(group, index) for group in groups for index in range(len(ask.groups[group]))]
        if ask.together:
            random.Random(ask.seed).shuffle(waiting)
        self.waiting = waiting[::-1]
        self.running: dict[str, tuple[int, int]] = {}
        self.tokens: dict[int, list[list[int]]] = {group: [[] for _ in ask.groups[group]] for group in groups}
        self.gains: dict[int, list[list[int]]] = {group: [[] for _ in ask.groups[group]] for group in groups}

    def _add(self, group: int, index: int) -> None:
        from vllm import SamplingParams

        heat = {"temperature": self.ask.heats[group], "seed": self.ask.seed + 1000 * group + index}
        extra = {"extra_args": {"ddtree": self.turn.nodes}} if self.turn.nodes else {}
        sampling = SamplingParams(max_tokens=self.ask.new, detokenize=False, **heat, **extra)
        name = f"{self.turn.arm}/{group}/{index}"
        self.engine.add_request(name, {"prompt_token_ids": self.ask.groups[group][index]}, sampling)
        self.running[name] = group, index

    def run(self) -> bool:
        """To the end, or to `until` (monotonic); False when it was cut."""
        while self.waiting or self.running:
            if time.monotonic() > self.until:
                self.engine.abort_request(list(self.running))
                return False
            while self.waiting and len(self.running) < self.turn.batch:
                self._add(*self.waiting.pop())
            for output in self.engine.step():
                group, index = self.running[output.request_id]
                now = list(output.outputs[0].token_ids)
                if len(now) > len(self.tokens[group][index]):
                    self.gains[group][index].append(len(now) - len(self.tokens[group][index]))
                    self.tokens[group][index] = now
                if output.finished:
                    del self.running[output.request_id]
        return True


def passes(ask: Ask, turn: Turn) -> Iterator[list[int]]:
    """Groups that run mixed."""
    yield from [turn.groups] if ask.together else [[group] for group in turn.groups]


def answer_of(llm: Any, ask: Ask, turn: Turn, until: float) -> Answer:
    began = time.monotonic()
    answer = Answer([[] for _ in ask.groups], [[] for _ in ask.groups], [{} for _ in ask.groups])
    for groups in passes(ask, turn):
        before, one = counters(), Pass(llm, ask, turn, groups, until)
        whole = one.run()
        for group in groups:
            answer.tokens[group], answer.gains[group] = one.tokens[group], one.gains[group]
        answer.trees[groups[0]] = {name: value - before.get(name, 0.0) for name, value in counters().items()}
        if not whole:
            break
    answer.seconds = round(time.monotonic() - began, 1)
    return answer


def end_with(parent: int) -> None:
    """Ends this process when the one that began it is gone: nobody would read its answer, and it holds a GPU's memory."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    began = time.monotonic()
    threading.Thread(target=end_with, args=(int(sys.argv[4]),), daemon=True).start()
    asked, place, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    given = json.loads(asked.read_text())
    ask = Ask(**given | {"turns": [Turn(**turn) for turn in given["turns"]]})
    import torch
    import vllm

    llm = vllm.LLM(**options(ask))
    print(f"loaded after {time.monotonic() - began:.0f} s", flush=True)
    versions = {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "card": torch.cuda.get_device_name() if ask.device == "cuda" else "CPU, kernels interpreted",
    }
    held = json.loads(place.read_text()) if place.is_file() else {}
    until = max(began + seconds, time.monotonic() + LEAST) if seconds else math.inf
    for turn in [turn for turn in ask.turns if turn.arm not in held]:
        answer = answer_of(llm, ask, turn, until)
        answer.versions = versions
        print(f"{turn.arm}: {answer.seconds:.0f} s", flush=True)
        held[turn.arm] = asdict(answer)
        fresh = place.with_suffix(".new")
        fresh.write_text(json.dumps(held))
        fresh.replace(place)


if __name__ == "__main__":
    main()
