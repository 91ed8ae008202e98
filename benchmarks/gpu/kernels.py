"""Each kernel of a verify step alone on a GPU: what it takes, the rates it achieves, and the share of the roofline that this is.

    python -m benchmarks.gpu.kernels --batch 1,8 --nodes 15,31,63 --context 4096 --out kernels.json

A case launches its kernel for all layers of Qwen3.6-27B, every layer with tensors of its own, captured in one CUDA graph; a
sample is one replay between two events. Random inputs; the path's rows all have to be moved. Bytes and FLOPs are roofline.py's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.gpu import dims
from benchmarks.gpu.roofline import A6000, H200, Card, Step, Work, numbers, works

CARDS = {"H200": H200, "A6000": A6000}


@dataclass(frozen=True)
class Timed:
    """One case: microseconds a step (median, smallest, largest), achieved rates, and the roofline's share of the median."""

    name: str
    batch: int
    nodes: int
    context: int
    launches: int
    median: float
    smallest: float
    largest: float
    gigabytes_per_s: float
    tflops: float
    roofline: float
    share: float


def timed(name: str, step: Step, found: Sequence[Work], card: Card, samples: Sequence[float]) -> Timed:
    """From samples in microseconds, each one step of the kernels `found`."""
    median = statistics.median(samples)
    flops = sum(work.bf16 + work.tf32 + work.fp32 for work in found)
    least = sum(work.seconds(card) for work in found) * 1e6
    return Timed(
        name=name,
        batch=step.batch,
        nodes=step.nodes,
        context=step.context,
        launches=sum(work.launches for work in found),
        median=median,
        smallest=min(samples),
        largest=max(samples),
        gigabytes_per_s=sum(work.bytes for work in found) / median / 1e3,
        tflops=flops / median / 1e6,
        roofline=least,
        share=least / median,
    )


def table(rows: Sequence[Timed]) -> str:
    heads = ("launches", "us/step", "smallest", "largest", "GB/s", "TFLOP/s", "roofline", "share")
    lines = [f"{'kernel':<16} {'batch x nodes':>13} " + " ".join(f"{head:>9}" for head in heads)]
    for row in rows:
        cells = (row.median, row.smallest, row.largest, row.gigabytes_per_s, row.tflops, row.roofline)
        texts = " ".join(f"{cell:9.1f}" for cell in cells)
        lines.append(f"{row.name:<16} {f'{row.batch} x {row.nodes}':>13} {row.launches:>9} {texts} {row.share:9.2f}")
    return "\n".join(lines)


def card_of(name: str) -> Card:
    """The peaks of a CUDA device; raises ValueError for one whose peaks are not known here."""
    for part, card in CARDS.items():
        if part in name:
            return card
    raise ValueError(f"the peaks of {name} are not known: add the card to benchmarks/gpu/roofline.py and to CARDS")


def sample(launch: Callable[[], None], count: int) -> list[float]:
    """Microseconds of `count` replays of what is launched."""
    import torch

    launch()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for _ in range(3):
        graph.replay()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for begin, end in events:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) * 1e3 for begin, end in events]


def measure(widths: dims.Dims, step: Step, card: Card, count: int, tiles: Mapping[str, int]) -> list[Timed]:
    from benchmarks.gpu.kernel_cases import cases

    by_kernel = {work.kernel: work for work in works(widths, step)}
    return [
        timed(case.name, step, [by_kernel[kernel] for kernel in case.kernels], card, sample(case.launch, count))
        for case in cases(widths, step, "cuda", tiles)
    ]


def sizes(text: str) -> dict[str, int]:
    """name=size,... of GdnTiles' fields and, as attention_*, of attention's Tiles; raises argparse's error for what is none of
    them, or no power of two. 0 is a size too: it turns off what can be on; stages and programs may be any number.
    """
    from benchmarks.gpu.kernel_inputs import ATTENTION
    from ddtree_ext.kernels.attention_scratch import Tiles
    from ddtree_ext.kernels.gdn_tiles import GdnTiles

    known = {field.name for field in fields(GdnTiles)} | {
        ATTENTION + field.name for field in fields(Tiles) if field.name != "cost"
    }
    found = {}
    for word in text.split(","):
        name, _, size = word.partition("=")
        free = name.endswith(("_stages", "_programs"))
        if name not in known or not size.isdecimal() or not (free or int(size).bit_count() <= 1):
            raise argparse.ArgumentTypeError(f"{word!r} is not name=size, a power of two of {', '.join(sorted(known))}")
        found[name] = int(size)
    return found


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="microseconds of every kernel of a verify step, beside its roofline")
    parser.add_argument("--preset", choices=dims.PRESETS, default="27b")
    parser.add_argument("--batch", type=numbers, default=(1, 8))
    parser.add_argument("--nodes", type=numbers, default=(15, 31, 63))
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--path", type=float, default=6.0, help="accepted rows, the root counted")
    parser.add_argument("--ranks", type=int, default=1, help="tensor-parallel ranks, of which one is measured")
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument(
        "--tiles", type=sizes, default={}, help="instead of the device's: apply_v=16,apply_warps=8,attention_keys=32"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    if min(given.nodes) < 3 or round(given.path) > min(given.nodes):
        parser.error("a tree needs 3 nodes at least, and as many nodes as accepted rows")
    return given


def main() -> int:
    given = arguments()
    import torch
    import triton

    if not torch.cuda.is_available():
        print("benchmarks.gpu.kernels measures on a CUDA device, and there is none here", file=sys.stderr)
        return 2
    name = torch.cuda.get_device_name()
    try:
        card = card_of(name)
    except ValueError as unknown:
        print(unknown, file=sys.stderr)
        return 2
    rows: list[Timed] = []
    for batch in given.batch:
        for nodes in given.nodes:
            step = Step(batch, nodes, given.context, given.path, given.ranks)
            rows += measure(dims.PRESETS[given.preset], step, card, given.samples, given.tiles)
    if given.out:
        versions = {"torch": torch.__version__, "triton": triton.__version__, "device": name}
        measured = {"command": sys.argv[1:], "versions": versions, "kernels": [asdict(row) for row in rows]}
        given.out.write_text(json.dumps(measured, indent=1))
    print(f"{name}; roofline: least microseconds from bytes and FLOPs at peak rates, an estimate")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
