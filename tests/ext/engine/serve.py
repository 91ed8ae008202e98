"""One engine process: loads a pair, runs the job's groups, writes the answer. Run by job.run, in its environment."""

from __future__ import annotations

import faulthandler
import json
import sys
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.ext.engine.job import DEVICE, LIMIT, PAIRS, Answer, Ask, Job, load

WORKERS = {"cpu": "ddtree_ext.engine.cpu_worker.DDTreeCPUWorker", "cuda": "ddtree_ext.engine.worker.DDTreeWorker"}


def engine_options(job: Job) -> dict[str, Any]:
    """Arguments of vllm.LLM for the job's arm."""
    options: dict[str, Any] = {
        "model": str(PAIRS / job.pair / "target"),
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "kv_cache_memory_bytes": 256 << 20,
        "disable_log_stats": False,
        "enable_prefix_caching": False,
    }
    additional: dict[str, Any] = {}
    if DEVICE == "cuda":
        options |= {"enforce_eager": False, "attention_backend": "FLASH_ATTN", "gpu_memory_utilization": 0.1}
        additional["gdn_prefill_backend"] = "triton"  # one kernel for prompts in every arm, whatever else is installed
    if job.arm != "plain":
        drafter = str(PAIRS / job.pair / "drafter")
        options["speculative_config"] = {
            "method": "dflash",
            "model": drafter,
            "num_speculative_tokens": job.tokens,
            **({"attention_backend": "FLASH_ATTN"} if DEVICE == "cuda" else {}),
            **job.speculative,
        }
    if job.arm == "tree":
        options |= {"worker_cls": WORKERS[DEVICE], "attention_backend": "CUSTOM"}
        additional["ddtree"] = {"topk": job.topk}
    return options | {"additional_config": additional} | job.engine


@dataclass
class Outcome:
    """One request's answer as it grows."""

    tokens: list[int] = field(default_factory=list)
    gains: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    scores: dict[int, float] = field(default_factory=dict)

    def take(self, output: Any) -> None:
        """What one engine step brought."""
        now = list(output.token_ids)
        if len(now) > len(self.tokens):
            self.gains.append(len(now) - len(self.tokens))
        self.tokens, self.text = now, output.text
        if output.logprobs:
            self.scores = {token: score.logprob for token, score in output.logprobs[0].items()}
            self.logprobs = [scores[token].logprob for token, scores in zip(now, output.logprobs, strict=True)]


def run_group(llm: Any, group: tuple[Ask, ...], number: int) -> list[Outcome]:
    """Steps the engine until the group is done; outcomes by request."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    engine = llm.llm_engine
    waiting = dict(enumerate(group))
    outcomes = [Outcome() for _ in group]
    steps = 0
    while waiting or engine.has_unfinished_requests():
        for index, ask in list(waiting.items()):
            if ask.arrives <= steps:
                defaults = {"temperature": 0.0, "max_tokens": ask.max_tokens, "ignore_eos": True}
                prompt = ask.prompt if isinstance(ask.prompt, str) else {"prompt_token_ids": ask.prompt}
                params = defaults | ask.params
                if "structured_outputs" in params:
                    params["structured_outputs"] = StructuredOutputsParams(**params["structured_outputs"])
                engine.add_request(f"{number}-{index}", prompt, SamplingParams(**params))
                del waiting[index]
        for output in engine.step():
            outcomes[int(output.request_id.split("-")[1])].take(output.outputs[0])
        steps += 1
    return outcomes


def metrics(llm: Any) -> dict[str, Any]:
    """Everything that vLLM would show of speculation, trees and preemptions on /metrics."""
    from prometheus_client import REGISTRY

    shown: dict[str, Any] = {}
    for family in REGISTRY.collect():
        if any(word in family.name for word in ("spec_decode", "ddtree", "preemptions")):
            for sample in family.samples:
                labels = (sample.labels.get(name) for name in ("depth", "position", "node", "le"))
                label = next((value for value in labels if value is not None), None)
                shown[sample.name + (f"[{label}]" if label is not None else "")] = sample.value
    return shown


def added(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What a group added to each metric; some are not shown before they are first counted."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def main() -> None:
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    job = load(Path(sys.argv[1]))
    from vllm import LLM

    llm = LLM(**engine_options(job))
    recorded: list[dict[str, Any]] = []
    if job.record_rows:
        from tests.ext.engine.recorder import record_rows

        record_rows(recorded)
    results, shown = [], [metrics(llm)]
    for number, group in enumerate(job.groups):
        results.append(run_group(llm, group, number))
        shown.append(metrics(llm))
    answer = Answer(
        tokens=[[outcome.tokens for outcome in group] for group in results],
        gains=[[outcome.gains for outcome in group] for group in results],
        texts=[[outcome.text for outcome in group] for group in results],
        logprobs=[[outcome.logprobs for outcome in group] for group in results],
        scores=[
            [{str(token): score for token, score in outcome.scores.items()} for outcome in group] for group in results
        ],
        counters=[added(*around) for around in pairwise(shown)],
        metrics=shown[-1],
        rows=recorded,
    )
    loaded = sorted(name for name in sys.modules if name.startswith("ddtree_ext"))
    assert job.arm == "tree" or not loaded, f"a reference that ran beside {loaded}"
    Path(sys.argv[2]).write_text(json.dumps(asdict(answer)))


if __name__ == "__main__":
    main()
