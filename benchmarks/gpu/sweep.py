"""Tries settings of some kernels of a verify step on a GPU, and marks the fastest for every size.

    python -m benchmarks.gpu.sweep --out sweep.json                     the candidates below, all sizes
    python -m benchmarks.gpu.sweep --kernels commit_tree --sizes 8x15 --settings commit_v=32,commit_warps=8 --settings ...
    python -m benchmarks.gpu.sweep --device cpu --preset tiny --sizes 2x7 --context 20 --path 4 --samples 1

Measured as in benchmarks.gpu.kernels: all layers in one CUDA graph. The kernels are compiled first, by a process for each
core, of a layer each; so a setting costs little more than its samples. `differs` is the largest difference from what the
device's own setting writes on the same inputs, as a share of its largest number: rounding, or a setting that must not be used.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.gpu import dims
from benchmarks.gpu.kernel_cases import Case, cases
from benchmarks.gpu.kernels import card_of, sample, sizes
from benchmarks.gpu.roofline import H200, Card, Step, works
from benchmarks.gpu.sweep_candidates import CANDIDATES

SIZES = "1x15,1x31,8x15,8x31"


@dataclass(frozen=True)
class Trial:
    """One setting of one kernel at one size. Microseconds a step; `error` in place of a result."""

    kernel: str
    size: str
    setting: str
    median: float = float("inf")
    smallest: float = 0.0
    largest: float = 0.0
    share: float = 0.0
    differs: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Sweep:
    """What a process needs to know of one."""

    widths: dims.Dims
    device: str
    samples: int
    seed: int = 11

    def case(self, kernel: str, step: Step, setting: str) -> Case:
        """On inputs that are the same for every setting."""
        torch.manual_seed(self.seed)
        changed = sizes(setting) if setting else {}
        return next(cases(self.widths, step, self.device, changed, {kernel}))

    def compile(self, kernel: str, step: Step, setting: str) -> None:
        """Leaves the kernel in Triton's cache. A failure shows again where it is measured."""
        narrow = replace(self, widths=replace(self.widths, layers=4))
        try:
            narrow.case(kernel, step, setting).launch()
            torch.cuda.synchronize()
        except Exception as failure:
            sys.stderr.write(f"{kernel} {setting}: {failure}\n")

    def times(self, launch: Callable[[], None]) -> list[float]:
        """Microseconds; on a CPU of the interpreter, which mean nothing."""
        if self.device == "cuda":
            return sample(launch, self.samples)
        found = []
        for _ in range(self.samples):
            begun = time.perf_counter()
            launch()
            found.append((time.perf_counter() - begun) * 1e6)
        return found

    def trials(self, kernel: str, step: Step, settings: Sequence[str], card: Card) -> list[Trial]:
        """Of the device's own setting, and then of `settings`."""
        by_kernel = {work.kernel: work.seconds(card) * 1e6 for work in works(self.widths, step)}
        found: list[Trial] = []
        plain: tuple[torch.Tensor, ...] = ()
        for setting in ("", *settings):
            trial = Trial(kernel, f"{step.batch}x{step.nodes}", setting)
            try:
                case = self.case(kernel, step, setting)
                case.launch()
                plain = plain or tuple(written.clone() for written in case.wrote)
                differs = max(difference(a, b) for a, b in zip(case.wrote, plain, strict=True))
                taken = self.times(case.launch)
            except Exception as failure:  # too many registers or too much shared memory, mostly
                found.append(replace(trial, error=(str(failure).splitlines() or [repr(failure)])[0][:80]))
                continue
            median = statistics.median(taken)
            share = sum(by_kernel[name] for name in case.kernels) / median
            found.append(
                replace(trial, median=median, smallest=min(taken), largest=max(taken), share=share, differs=differs)
            )
        return found


def difference(ours: torch.Tensor, plain: torch.Tensor) -> float:
    """The largest, as a share of the largest number; NaN where one of them has one and the other has not."""
    apart = (ours.float() - plain.float()).abs()
    apart[ours.isnan() & plain.isnan()] = 0
    return float(apart.max() / plain.float().nan_to_num().abs().max().clamp_min(1e-30))


def table(trials: Sequence[Trial]) -> str:
    """Kernel by kernel, setting by setting; * is the fastest of its size, of those that write the same to rounding."""
    lines = [
        f"{'kernel':<15} {'size':>5} {'us/step':>9} {'smallest':>9} {'largest':>9} {'share':>6} {'differs':>8}   setting"
    ]
    for group in groups(trials):
        best = fastest(group)
        for trial in group:
            head = f"{trial.kernel:<15} {trial.size:>5}"
            name = trial.setting or "as it is"
            if trial.error:
                lines.append(f"{head} {name}: {trial.error}")
                continue
            times = f"{trial.median:9.1f} {trial.smallest:9.1f} {trial.largest:9.1f}"
            mark = "*" if trial is best else " "
            lines.append(f"{head} {times} {trial.share:6.2f} {trial.differs:8.1e} {mark} {name}")
    return "\n".join(lines)


def groups(trials: Sequence[Trial]) -> list[list[Trial]]:
    """By kernel and size, in the order of the first of each."""
    found: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        found.setdefault((trial.kernel, trial.size), []).append(trial)
    return list(found.values())


def fastest(group: Sequence[Trial]) -> Trial | None:
    right = [trial for trial in group if not trial.error and trial.differs < 1e-2]
    return min(right, key=lambda trial: trial.median) if right else None


def over_all_sizes(trials: Sequence[Trial]) -> str:
    """The settings that could be measured at every size, by the sum of their shares of the own setting's times."""
    lines = []
    for kernel in dict.fromkeys(trial.kernel for trial in trials):
        own = {t.size: t.median for t in trials if t.kernel == kernel and not (t.setting or t.error)}
        ratios: dict[str, list[float]] = {}
        for trial in trials:
            if trial.kernel == kernel and trial.size in own and not trial.error and trial.differs < 1e-2:
                ratios.setdefault(trial.setting, []).append(trial.median / own[trial.size])
        means = {setting: statistics.mean(found) for setting, found in ratios.items() if len(found) == len(own)}
        for setting in sorted(means, key=lambda setting: means[setting])[:3]:
            lines.append(f"{kernel:<15} {means[setting]:.3f} of as it is: {setting or 'as it is'}")
    return "\n".join(lines)


def compile_all(sweep: Sweep, steps: Sequence[Step], tried: Mapping[str, Sequence[str]], workers: int) -> None:
    """In other processes, before anything is measured. What a compiler that dies leaves undone is compiled when it is measured."""
    jobs = [(k, step, setting) for k, settings in tried.items() for step in steps for setting in ("", *settings)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            for running in [pool.submit(sweep.compile, *job) for job in jobs]:
                running.result()
        except BrokenProcessPool as broken:
            sys.stderr.write(f"compiling beforehand: {broken}\n")


def size(text: str) -> tuple[int, int]:
    """batch x nodes"""
    batch, _, nodes = text.partition("x")
    return int(batch), int(nodes)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="settings of kernels, tried one after the other")
    parser.add_argument("--kernels", default=",".join(CANDIDATES), help=f"of {', '.join(CANDIDATES)}")
    parser.add_argument(
        "--settings", action="append", help="name=size,...; instead of the candidates, for every kernel"
    )
    parser.add_argument("--sizes", default=SIZES, help="batch x nodes")
    parser.add_argument("--preset", choices=dims.PRESETS, default="27b")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--path", type=float, default=6.0, help="accepted rows, the root counted")
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--workers", type=int, default=min(12, os.cpu_count() or 1), help="processes that compile; 0: none"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    given.kernels, given.sizes = given.kernels.split(","), [size(word) for word in given.sizes.split(",")]
    unknown = [kernel for kernel in given.kernels if kernel not in CANDIDATES]
    if unknown:
        parser.error(f"no candidates for {', '.join(unknown)}")
    for setting in given.settings or ():
        try:
            sizes(setting)
        except argparse.ArgumentTypeError as wrong:
            parser.error(str(wrong))
    return given


def main(words: Sequence[str] | None = None) -> int:
    given = arguments(words)
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write(
            "benchmarks.gpu.sweep measures on a CUDA device, and there is none here: --device cpu shows that it runs\n"
        )
        return 2
    name = torch.cuda.get_device_name() if given.device == "cuda" else "a CPU, whose times mean nothing"
    card = card_of(name) if given.device == "cuda" else H200
    begun = time.perf_counter()
    sweep = Sweep(dims.PRESETS[given.preset], given.device, given.samples)
    steps = [Step(batch, nodes, given.context, given.path) for batch, nodes in given.sizes]
    tried = {kernel: given.settings or CANDIDATES[kernel] for kernel in given.kernels}
    if given.device == "cuda" and given.workers:
        compile_all(sweep, steps, tried, given.workers)
    compiled = time.perf_counter() - begun
    trials: list[Trial] = []
    for kernel, step in product(given.kernels, steps):
        found = sweep.trials(kernel, step, tried[kernel], card)
        trials += found
        sys.stderr.write(table(found) + "\n")  # at once: a lease may end before the last
        if given.out:
            given.out.write_text(json.dumps({"device": name, "trials": [asdict(trial) for trial in trials]}, indent=1))
    print(
        f"{name}; compiled in {compiled:.0f} s, {time.perf_counter() - begun:.0f} s in all; * the fastest of its size"
    )
    print(table(trials))
    print(over_all_sizes(trials))
    return 0


if __name__ == "__main__":
    sys.exit(main())
