"""What a GPU did in some engine steps, from a torch profiler's trace: its kernels, how busy it was, and who waited for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuStreamSynchronize")


@dataclass(frozen=True)
class Kernel:
    """One kernel or copy by its name: microseconds and launches a step."""

    name: str
    microseconds: float
    launches: float


@dataclass(frozen=True)
class Profile:
    """Of `steps` engine steps. busy: the share of the time between the first kernel's begin and the last one's end in which
    at least one ran. The counts are per step: copies to the host, calls that wait for the GPU (by name), graph launches.
    """

    steps: int
    step_us: float
    busy: float
    copies_to_host: float
    waits: dict[str, float]
    graphs: float
    kernels: tuple[Kernel, ...]


def read(path: Path, steps: int) -> Profile:
    """The profile of a chrome trace that torch's profiler wrote during `steps` steps."""
    return profile(json.loads(path.read_text())["traceEvents"], steps)


def profile(events: Sequence[Mapping[str, Any]], steps: int) -> Profile:
    """From a trace's events. Raises ValueError when no kernel is among them."""
    ran = sorted((e for e in events if e.get("cat") in KERNELS), key=lambda e: float(e["ts"]))
    if not ran:
        raise ValueError("the trace has no kernel: the profiler saw no GPU")
    calls: dict[str, int] = {}
    for event in events:
        if event.get("cat") in CALLS:
            calls[event["name"]] = calls.get(event["name"], 0) + 1
    sums: dict[str, list[float]] = {}
    for event in ran:
        cell = sums.setdefault(str(event["name"]), [0.0, 0])
        cell[0] += float(event["dur"])
        cell[1] += 1
    kernels = [Kernel(name, spent / steps, count / steps) for name, (spent, count) in sums.items()]
    span = max(float(e["ts"]) + float(e["dur"]) for e in ran) - float(ran[0]["ts"])
    return Profile(
        steps=steps,
        step_us=span / steps,
        busy=covered(ran) / span,
        copies_to_host=sum("DtoH" in str(e["name"]) for e in ran) / steps,
        waits={name: calls[name] / steps for name in WAITS if name in calls},
        graphs=sum(count for name, count in calls.items() if "GraphLaunch" in name) / steps,
        kernels=tuple(sorted(kernels, key=lambda kernel: -kernel.microseconds)),
    )


def covered(ran: Iterable[Mapping[str, Any]]) -> float:
    """Microseconds in which at least one of the events ran; they are in the order of their begin."""
    total, until = 0.0, float("-inf")
    for event in ran:
        begin, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def table(found: Mapping[str, Any], lines: int = 25) -> str:
    """A profile as arm.py writes it: what decided the step, longest kernel first."""
    waits = ", ".join(f"{name} {count:.1f}" for name, count in found["waits"].items()) or "none"
    head = (
        f"{found['step_us']:.0f} us a step, GPU busy {100 * found['busy']:.1f} %; a step: {found['graphs']:.1f} graphs, "
        f"{found['copies_to_host']:.1f} copies to the host, waits: {waits}"
    )
    rest = found["kernels"][lines:]
    rows = [f"{k['microseconds']:9.1f} us {k['launches']:7.1f}x  {k['name'][:90]}" for k in found["kernels"][:lines]]
    if rest:
        rows.append(
            f"{sum(k['microseconds'] for k in rest):9.1f} us {sum(k['launches'] for k in rest):7.1f}x  the rest"
        )
    return "\n".join([head, *rows])
