"""One vLLM process: loads a pair in one arm, answers requests in batches, notes what every step brought.

usage: python -m benchmarks.pairs.engine ASK.json ANSWER.json     (called by `answered`; the engine's own output goes to stderr)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
WORKERS = {"cpu": "ddtree_ext.engine.cpu_worker.DDTreeCPUWorker", "cuda": "ddtree_ext.engine.worker.DDTreeWorker"}
WIDTH = 15


@dataclass(frozen=True)
class Ask:
    """One engine: `arm` is ar, chain:K (stock DFlash) or tree:B; ar and chain run with the extension absent.

    `groups` [group][request] are prompts as token ids; `heats` the temperature of each group; requests end at the end
    token or after `new` tokens. `batch` requests run at a time. `stop_at_end` False goes on past the end token.
    """

    arm: str
    pair: str
    device: str
    groups: list[list[list[int]]]
    heats: list[float]
    new: int
    batch: int
    max_model_len: int = 1024
    stop_at_end: bool = True
    seed: int = 7
    eager: bool = True

    @property
    def kind(self) -> str:
        return self.arm.partition(":")[0]

    @property
    def nodes(self) -> int:
        return int(self.arm.partition(":")[2] or 0)


@dataclass
class Answer:
    """Per group and request: token ids, and how many came with each engine step (the prefill's first). `trees`: the extension's
    counters by group."""

    tokens: list[list[list[int]]] = field(default_factory=list)
    gains: list[list[list[int]]] = field(default_factory=list)
    trees: list[dict[str, float]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


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
        if (
            ask.kind == "tree" and ask.nodes < WIDTH
        ):  # a budget below the drafter's width is one of vLLM's budgets by batch size
            drafter |= {
                "num_speculative_tokens": WIDTH,
                "num_speculative_tokens_per_batch_size": [[1, ask.batch, ask.nodes]],
            }
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


def answered(ask: Ask, folder: Path, limit: float) -> Answer:
    """Runs the engine in a fresh process; raises RuntimeError with its last lines where it fails or takes more than `limit`
    seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = ask.arm.replace(":", "-")
    asked, answer = folder / f"{name}.ask.json", folder / f"{name}.answer.json"
    asked.write_text(json.dumps(asdict(ask)))
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.pairs.engine", str(asked), str(answer)]
    try:
        done = subprocess.run(
            command, cwd=REPO, env=environment(ask), capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{ask.arm}: no end after {limit:.0f} s: {str(late.stderr or b'')[-1500:]}") from late
    if done.returncode or not answer.is_file():
        raise RuntimeError(f"{ask.arm}: exit code {done.returncode}: {(done.stdout + done.stderr)[-6000:]}")
    return Answer(**json.loads(answer.read_text()))


def counters() -> dict[str, float]:
    """Totals of the tree's own counters; empty where the extension is absent."""
    from prometheus_client import REGISTRY

    return {
        sample.name.removeprefix("vllm:ddtree_").removesuffix("_total"): sample.value
        for family in REGISTRY.collect()
        if family.name.startswith("vllm:ddtree_") and "per_" not in family.name
        for sample in family.samples
    }


def run_group(llm: Any, ask: Ask, number: int) -> tuple[list[list[int]], list[list[int]]]:
    """(token ids, gains) of each request of a group."""
    from vllm import SamplingParams

    engine, prompts = llm.llm_engine, ask.groups[number]
    tokens: list[list[int]] = [[] for _ in prompts]
    gains: list[list[int]] = [[] for _ in prompts]
    for index, prompt in enumerate(prompts):
        heat = {"temperature": ask.heats[number], "seed": ask.seed + 1000 * number + index}
        sampling = SamplingParams(max_tokens=ask.new, ignore_eos=not ask.stop_at_end, detokenize=False, **heat)
        engine.add_request(f"{number}-{index}", {"prompt_token_ids": prompt}, sampling)
    while engine.has_unfinished_requests():
        for output in engine.step():
            index, now = int(output.request_id.split("-")[1]), list(output.outputs[0].token_ids)
            if len(now) > len(tokens[index]):
                gains[index].append(len(now) - len(tokens[index]))
                tokens[index] = now
    return tokens, gains


def main() -> None:
    ask = Ask(**json.loads(Path(sys.argv[1]).read_text()))
    import torch
    import vllm

    llm = vllm.LLM(**options(ask))
    answer = Answer(versions={
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "card": torch.cuda.get_device_name() if ask.device == "cuda" else "CPU, kernels interpreted",
    })  # fmt: skip
    for number in range(len(ask.groups)):
        before = counters()
        tokens, gains = run_group(llm, ask, number)
        answer.tokens.append(tokens)
        answer.gains.append(gains)
        answer.trees.append({name: value - before.get(name, 0.0) for name, value in counters().items()})
    Path(sys.argv[2]).write_text(json.dumps(asdict(answer)))


if __name__ == "__main__":
    main()
