"""A pair on stock vLLM, ddtree_ext absent: python -m tests.pairs.stock PAIR_FOLDER [--prompts N]

Runs the DFlash chain on the engine of this environment and holds its greedy tokens against transformers in fp32. Prints
the chain's acceptance length and every divergence, with the target's own gap there.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

ENGINE: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": 512,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 256 << 20,
    "max_num_seqs": 8,
    "enable_prefix_caching": False,
    "disable_log_stats": False,
}


def chain(pair: Path, texts: tuple[str, ...], new: int) -> tuple[list[list[int]], float]:
    """Greedy token ids of the stock chain, and its acceptance length."""
    from vllm import LLM, SamplingParams

    width = json.loads((pair / "drafter" / "config.json").read_text())["block_size"] - 1
    speculative = {"method": "dflash", "model": str(pair / "drafter"), "num_speculative_tokens": width}
    engine = LLM(model=str(pair / "target"), speculative_config=speculative, **ENGINE)
    sampling = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
    outputs = engine.generate(list(texts), sampling, use_tqdm=False)
    counters = {metric.name: getattr(metric, "value", 0) for metric in engine.get_metrics()}
    drafts = counters["vllm:spec_decode_num_drafts"]
    accepted = counters["vllm:spec_decode_num_accepted_tokens"]
    return [list(output.outputs[0].token_ids) for output in outputs], 1 + accepted / drafts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.pairs.stock")
    parser.add_argument("pair", type=Path)
    parser.add_argument("--prompts", type=int, default=8)
    options = parser.parse_args()
    os.environ["VLLM_PLUGINS"] = ""  # no general plugin: stock vLLM
    from tests.pairs import greedy, target
    from tests.pairs.prompts import NEW_TOKENS, PROMPTS

    texts = PROMPTS[: options.prompts]
    got, acceptance = chain(options.pair, texts, NEW_TOKENS)
    expected = greedy.decode(target.load(options.pair / "target"), texts, NEW_TOKENS)
    same = 0
    for i, (mine, reference) in enumerate(zip(got, expected.outputs, strict=True)):
        first = next((j for j, (a, b) in enumerate(zip(mine, reference, strict=True)) if a != b), None)
        same += first is None
        if first is not None:
            print(f"prompt {i}: parts from transformers at {first}, gap {float(expected.gaps[i, first]):.3f}")
    print(f"stock chain: acceptance length {acceptance:.2f}; {same} of {len(texts)} outputs equal transformers'")


if __name__ == "__main__":
    main()
