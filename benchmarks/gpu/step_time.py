"""Milliseconds per decode step, arm beside arm, at Qwen3.6-27B's dimensions with random weights, under CUDA graphs.

    python -m benchmarks.gpu.step_time --arms ar,chain:7,chain:15,spine:15,tree:31,tree:63 --batch 1,8 --prompt 4096 --out step.json
    python -m benchmarks.gpu.step_time --preset tiny --device cpu --arms chain:15,tree:31 --prompt 64   # does it run?

Random: weights (vLLM's dummy loader), prompts (seeded). Each arm is a process of its own that loads once; `--rounds 2` runs all
arms again, so that a drift of the machine shows. Random weights accept nothing; with `--forced L` every cell is measured a second
time at an acceptance length of L (benchmarks.gpu.forced), so that commit and compaction run.
The reported number is the median of all windows, with the smallest and the largest. Needs about 80 GB of GPU memory for 27b.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu import dims, trace
from benchmarks.gpu.arm import Spec
from benchmarks.gpu.turns import Turns

REPO = Path(__file__).resolve().parents[2]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="milliseconds per decode step, arm beside arm")
    parser.add_argument("--arms", default="ar,chain:7,chain:15,spine:15,tree:31,tree:63")
    parser.add_argument("--batch", type=numbers, default=(1, 8))
    parser.add_argument("--prompt", type=numbers, default=(4096,))
    parser.add_argument("--preset", choices=dims.PRESETS, default="27b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--forced", type=float, default=0.0, help="mean acceptance length: accepted nodes + 1")
    parser.add_argument("--tp", type=int, default=1, help="GPUs that share the model")
    parser.add_argument(
        "--together", action="store_true", help="load all arms at once and measure in turns; needs the memory for it"
    )
    parser.add_argument("--kv-gib", type=float, default=0.0, help="memory of the caches; 0: what is left of the GPU's")
    parser.add_argument(
        "--profile", type=int, default=0, metavar="STEPS", help="then so many steps under torch's profiler"
    )
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one arm")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    if given.profile and given.device == "cpu":
        parser.error("--profile needs --device cuda: it shows what a GPU did")
    return given


def run_arm(spec: Spec, limit: float) -> dict[str, Any]:
    """The arm's numbers; what it had measured before an error or the limit, with the error's last lines."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "spec.json", Path(folder) / "out.json"
        traces = Path(folder) / "traces"
        traces.mkdir()
        asked.write_text(json.dumps(asdict(replace(spec, traces=str(traces)))))
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "INFO"}
        environment["PYTHONPATH"] = os.pathsep.join([str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])])
        if spec.device == "cpu":
            environment |= {"TRITON_INTERPRET": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_HOST_IP": "127.0.0.1"}
        command = [sys.executable, "-m", "benchmarks.gpu.arm", str(asked), str(answer)]
        try:
            done = subprocess.run(
                command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=limit, check=False
            )
            said = done.stdout + done.stderr
            error = "" if done.returncode == 0 else said[-6000:]
        except subprocess.TimeoutExpired as late:
            said = (late.stderr or b"").decode(errors="replace")
            error = f"no end after {limit:.0f} s: {said[-3000:]}"
        Turns.of(spec).mark()  # an arm that failed is not waited for
        found: dict[str, Any] = json.loads(answer.read_text()) if answer.exists() else {"arm": spec.arm}
        return found | {
            "error": error,
            "room": room(said),
            "log": said if len(said) < 40_000 else said[:20_000] + said[-20_000:],
        }


def room(said: str) -> float | None:
    """How many requests of the longest length fit the GPU's memory, as vLLM says when it has loaded."""
    found = re.search(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", said)
    return float(found[1]) if found else None


def table(results: list[dict[str, Any]]) -> str:
    """One line per arm, batch and prompt: median, range, accepted per step, share off the spine, median time to the first token
    of such a prompt alone, requests that fit; then what was profiled."""
    heads = ("ms/step", "smallest", "largest", "accepted", "off spine", "TTFT ms", "room")
    lines = [f"{'arm':<10} {'batch x prompt':>14} " + " ".join(f"{head:>9}" for head in heads)]
    cells: dict[tuple[str, str], list[float]] = {}
    for result in results:
        for name, windows in result.get("windows", {}).items():
            cells.setdefault((result["arm"], name), []).extend(windows)
    for (arm, name), windows in cells.items():
        last = [result for result in results if result["arm"] == arm and name in result.get("windows", {})][-1]
        shown = [statistics.median(windows), min(windows), max(windows)]
        first = last["ttft"].get(name)
        extra = [
            last["accepted"].get(name),
            last["off_spine"].get(name),
            first and statistics.median(first),
            last["room"],
        ]
        texts = [f"{value:9.2f}" for value in shown] + [
            f"{'-':>9}" if value is None else f"{value:9.2f}" for value in extra
        ]
        lines.append(f"{arm:<10} {name:>14} {' '.join(texts)}")
    for result in results:
        lines += [f"\n{result['arm']}, {name}: {trace.table(p)}" for name, p in result.get("profiles", {}).items()]
    lines += [f"{result['arm']}: FAILED: {result['error'][-1500:]}" for result in results if result.get("error")]
    return "\n".join(lines)


def main() -> int:
    given = arguments()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for result in measured(given, Path(folder)):
            results.append(result)
            if given.out:
                given.out.write_text(json.dumps({"command": sys.argv[1:], "results": results}, indent=1))
    print(table(results))
    return int(any(result.get("error") for result in results))


def measured(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Every arm's result of every round: one arm after the other, or a round's arms loaded at once."""
    target, drafter = dims.write(dims.PRESETS[given.preset], folder)
    arms = given.arms.split(",")
    for _ in range(given.rounds):
        specs = [
            Spec(
                arm,
                str(target),
                str(drafter),
                given.device,
                given.batch,
                given.prompt,
                given.windows,
                given.steps,
                given.forced,
                given.profile,
                tp=given.tp,
                kv_gib=given.kv_gib,
            )
            for arm in arms
        ]
        if not given.together:
            yield from (run_arm(spec, given.limit) for spec in specs)
            continue
        with tempfile.TemporaryDirectory() as turns, ThreadPoolExecutor(len(specs)) as pool:
            specs = [replace(spec, turns=turns, together=len(specs), place=n) for n, spec in enumerate(specs)]
            limits = [given.limit * len(specs)] * len(specs)  # each waits for the others
            yield from pool.map(run_arm, specs, limits)


if __name__ == "__main__":
    sys.exit(main())
