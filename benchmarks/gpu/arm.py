"""One arm in one process: loads random weights, holds every batch size in steady decode, times windows of engine steps.

usage: python -m benchmarks.gpu.arm SPEC.json OUT.json     (called by step_time; the engine's own output goes to stderr)
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.trace import read
from benchmarks.gpu.turns import Turns

BLOCK = 16
"""Rows of the drafter's pass."""


@dataclass(frozen=True)
class Spec:
    """arm: ar, chain:K, spine:K (K drafted tokens through our kernels) or tree:B; with `forced`, a mean acceptance length, every
    cell is measured as it comes and then with that length.

    device: cuda, or cpu to see that it runs. Lengths in tokens; windows of `steps` engine steps each.
    """

    arm: str
    target: str
    drafter: str
    device: str
    batches: tuple[int, ...]
    prompts: tuple[int, ...]
    windows: int
    steps: int
    forced: float = 0.0
    profiled: int = (
        0  # steps under the profiler, for every batch at the first prompt length, after everything was timed
    )
    traces: str = ""  # folder of the profiler's traces
    tp: int = 1  # GPUs that share the model
    kv_gib: float = 0.0  # of the caches; 0: what is left of 85 % of the memory
    turns: str = ""  # folder in which arms that are loaded together take turns
    together: int = 1  # how many they are
    place: int = 0  # this one's among them

    @property
    def nodes(self) -> int:
        return int(self.arm.partition(":")[2] or 0)

    @property
    def kind(self) -> str:
        return self.arm.partition(":")[0]


@dataclass
class Measured:
    """Milliseconds per step of each window, by "batch x prompt"; first-token milliseconds of each prompt alone, by its length;
    accepted per step; the profiled steps; versions."""

    arm: str
    load_s: float = 0.0
    windows: dict[str, list[float]] = field(default_factory=dict)
    ttft: dict[str, list[float]] = field(default_factory=dict)
    accepted: dict[str, float] = field(default_factory=dict)
    off_spine: dict[str, float] = field(default_factory=dict)
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def engine_options(spec: Spec) -> dict[str, Any]:
    """Arguments of vllm.LLM; every arm alike but for speculation."""
    rows = 1 + spec.nodes
    largest = max(spec.batches)
    options: dict[str, Any] = {
        "model": spec.target,
        "dtype": "bfloat16",
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": max(spec.prompts) + 16 * (2 * spec.windows + 3) * spec.steps,
        "max_num_seqs": largest,
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
    }
    additional: dict[str, Any] = {"gdn_prefill_backend": "triton"}
    if spec.device == "cuda":
        options["gpu_memory_utilization"] = 0.85 / spec.together
        if spec.kv_gib:
            options["kv_cache_memory_bytes"] = int(spec.kv_gib * 2**30)
        options["attention_backend"] = "FLASH_ATTN"
        # Of the target's rows, and of the drafter's.
        sizes = {1, *(n * rows for n in spec.batches), *(n * min(rows, BLOCK) for n in spec.batches)}
        options["compilation_config"] = {"cudagraph_capture_sizes": sorted(sizes)}
    else:
        options |= {"enforce_eager": True, "kv_cache_memory_bytes": 1 << 29}
    if spec.kind != "ar":
        options["speculative_config"] = speculation(spec)
    if spec.kind in ("spine", "tree"):
        module = "worker.DDTreeWorker" if spec.device == "cuda" else "cpu_worker.DDTreeCPUWorker"
        options["worker_cls"] = f"ddtree_ext.engine.{module}"
        options["attention_backend"] = "CUSTOM"
        additional["ddtree"] = {"topk": 1 if spec.kind == "spine" else 16}
    if spec.forced and spec.kind != "ar":
        module = "forced" if spec.device == "cuda" else "forced_cpu"
        worker = "ForcedWorker" if spec.kind == "chain" else "ForcedDDTreeWorker"
        options["worker_cls"] = f"benchmarks.gpu.{module}.{worker}"
    if spec.tp > 1:
        options["tensor_parallel_size"] = spec.tp
    if spec.profiled:
        options["profiler_config"] = {
            "profiler": "torch",
            "torch_profiler_dir": spec.traces,
            "torch_profiler_with_stack": False,
            "torch_profiler_use_gzip": False,
        }
    return options | {"additional_config": additional}


def speculation(spec: Spec) -> dict[str, Any]:
    """The drafter."""
    config: dict[str, Any] = {"method": "dflash", "model": spec.drafter, "num_speculative_tokens": spec.nodes}
    if spec.device == "cuda":
        config["attention_backend"] = "FLASH_ATTN"
    return config


def counters(llm: Any) -> dict[str, float]:
    """Totals of vLLM's own speculation counters, and of the tree's."""
    from prometheus_client import REGISTRY

    wanted = re.compile(r"(spec_decode_num_(drafts|accepted_tokens)|ddtree_(trees|accepted|accepted_off_spine))_total$")
    return {
        sample.name: sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if wanted.search(sample.name)
    }


@contextmanager
def decoding(llm: Any, batch: int, prompt: int) -> Iterator[Callable[[int], None]]:
    """`batch` requests that all decode; gives what makes so many engine steps. They are aborted in the end."""
    from vllm import SamplingParams

    engine, rng = llm.llm_engine, random.Random(batch * 100_003 + prompt)
    vocabulary = engine.model_config.get_vocab_size()
    params = SamplingParams(temperature=0.0, max_tokens=10**6, ignore_eos=True, detokenize=False)
    ids = [f"{batch}x{prompt}-{index}" for index in range(batch)]
    for request in ids:
        tokens = [rng.randrange(16, vocabulary - 16) for _ in range(prompt)]
        engine.add_request(request, {"prompt_token_ids": tokens}, params)
    seen: set[str] = set()
    for _ in range(20 * batch + prompt):
        seen |= {output.request_id for output in engine.step()}
        if len(seen) == batch:
            break
    else:
        raise RuntimeError(f"{batch} requests of {prompt} tokens do not fit: only {len(seen)} began")

    def steps(count: int) -> None:
        for _ in range(count):
            engine.step()

    try:
        yield steps
    finally:
        engine.abort_request(ids)
        while engine.has_unfinished_requests():
            engine.step()


def hold(llm: Any, spec: Spec, batch: int, prompt: int, measured: Measured) -> None:
    """Times `windows` windows of `steps` steps; once more with the forced length."""
    with decoding(llm, batch, prompt) as steps:
        time_windows(llm, spec, steps, f"{batch}x{prompt}", measured)
        if spec.forced and spec.kind != "ar":
            llm.collective_rpc("force", args=(spec.forced,))
            time_windows(llm, spec, steps, f"{batch}x{prompt} L{spec.forced:g}", measured)
            llm.collective_rpc("force", args=(0.0,))


def time_windows(llm: Any, spec: Spec, steps: Callable[[int], None], name: str, measured: Measured) -> None:
    """Into the cell `name`; a window's worth of steps goes before."""
    steps(spec.steps)
    before, timed = counters(llm), []
    for _ in range(spec.windows):
        start = time.perf_counter()
        steps(spec.steps)
        timed.append((time.perf_counter() - start) * 1e3 / spec.steps)
    measured.windows[name] = timed
    note_acceptance(measured, name, before, counters(llm))


def first_tokens(llm: Any, prompt: int, measured: Measured, count: int = 6) -> None:
    """Milliseconds to the first token of `count` prompts, each alone; one more before them warms the length up."""
    timed = []
    for _ in range(count + 1):
        start = time.perf_counter()
        with decoding(llm, 1, prompt):
            timed.append((time.perf_counter() - start) * 1e3)
    measured.ttft[f"1x{prompt}"] = timed[1:]


def profile(llm: Any, spec: Spec, batch: int, prompt: int, measured: Measured) -> None:
    """Some steady steps under torch's profiler; the trace stays in the engine's folder."""
    folder = Path(spec.traces)
    before = set(folder.glob("*.json"))
    with decoding(llm, batch, prompt) as steps:
        steps(spec.steps)
        llm.start_profile()
        steps(spec.profiled)
        llm.stop_profile()
    for trace in set(folder.glob("*.json")) - before:
        measured.profiles[f"{batch}x{prompt}"] = asdict(read(trace, spec.profiled))
        trace.unlink()


def note_acceptance(measured: Measured, name: str, before: dict[str, float], after: dict[str, float]) -> None:
    """Accepted nodes per request and step, and the share of them off the spine."""
    grown = {key: after[key] - before.get(key, 0.0) for key in after}
    drafts = grown.get("vllm:spec_decode_num_drafts_total", 0.0)
    if drafts:
        measured.accepted[name] = grown["vllm:spec_decode_num_accepted_tokens_total"] / drafts
    if grown.get("vllm:ddtree_accepted_total"):
        measured.off_spine[name] = grown["vllm:ddtree_accepted_off_spine_total"] / grown["vllm:ddtree_accepted_total"]


def main() -> None:
    raw = json.loads(Path(sys.argv[1]).read_text())
    spec = Spec(**(raw | {"batches": tuple(raw["batches"]), "prompts": tuple(raw["prompts"])}))
    import torch
    import vllm
    from vllm import LLM

    measured = Measured(spec.arm)
    begun = time.perf_counter()
    llm = LLM(**engine_options(spec))
    measured.load_s = time.perf_counter() - begun
    measured.versions = {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if spec.device == "cuda" else "CPU, interpreted: times mean nothing",
        "v2": str(llm.llm_engine.vllm_config.use_v2_model_runner),
    }
    turns = Turns.of(spec)
    turns.wait_for_all()
    for prompt in spec.prompts:
        for batch in spec.batches:
            with turns.mine():
                hold(llm, spec, batch, prompt, measured)
            Path(sys.argv[2]).write_text(json.dumps(asdict(measured), indent=1))
        with turns.mine():
            first_tokens(llm, prompt, measured)
    for batch in spec.batches if spec.profiled else ():
        with turns.mine():
            profile(llm, spec, batch, spec.prompts[0], measured)
    Path(sys.argv[2]).write_text(json.dumps(asdict(measured), indent=1))


if __name__ == "__main__":
    main()
