"""An estimate of whole decode steps on two RTX A6000, and of the node budget for each number of requests. Needs no GPU.

    python -m benchmarks.gpu.estimate

Bytes and FLOPs (whole_step.py) at the rates that one H200 achieved (calibration.py), carried over to the A6000 by the ratio of
the data sheets' peaks; the bus between the cards and the drafter's acceptance are assumptions. Nothing here was measured on
an A6000: `ddtree-deploy tune` measures, and its answer replaces this one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from benchmarks.gpu.acceptance import Drafter, tokens
from benchmarks.gpu.calibration import MATRIX_MEASURED, MEASURED
from benchmarks.gpu.dims import QWEN36_27B
from benchmarks.gpu.roofline import A6000, DRAFTER_WIDTH, H200
from benchmarks.gpu.whole_step import Arm, Bus, Machine, drafter_products, step, target_products

BATCHES = (1, 2, 4, 8)
BUDGETS = (0, 3, 7, 15, 31, 63)
ARMS = ("ar", "chain:7", "chain:15", *(f"tree:{budget}" for budget in BUDGETS))
NEAR = 0.02
"""Of the fastest: what lies closer cannot be told apart here, and the smaller budget is taken."""

PEER = Bus(20e9, 15e-6)
"""PCIe 4.0 x16 with peer access, and vLLM's own all-reduce: an assumption. 41.4 GB/s both ways together were seen between two
RTX 4090 (tinygrad/open-gpu-kernel-modules#6); 9 us is that kernel's least time over NVLink (sgl-project/sglang#2904).
"""
HOST_MEMORY = Bus(10e9, 25e-6)
"""Without peer access, by NCCL through the host's memory: 25.8 GB/s both ways together were seen there in the same place."""
BRIDGE = Bus(50e9, 10e-6)
"""With an NVLink bridge, 56 GB/s in each direction by the data sheet."""
PAIR = Machine(A6000, ranks=2, bus=PEER)


@dataclass(frozen=True)
class Case:
    """One set of assumptions."""

    name: str = "as assumed"
    machine: Machine = PAIR
    drafter: Drafter = field(default_factory=Drafter)
    context: int = 4096

    def length(self, arm: Arm) -> float:
        """Tokens a step and request."""
        return tokens(self.drafter)[arm.tokens]

    def parts(self, arm: Arm, batch: int) -> Mapping[str, float]:
        """Seconds of a step."""
        return step(QWEN36_27B, arm, batch, self.context, self.machine, self.length(arm))

    def speed(self, arm: Arm, batch: int) -> float:
        """Tokens a second of all requests together."""
        return batch * self.length(arm) / sum(self.parts(arm, batch).values())


def cases(assumed: Case) -> tuple[Case, ...]:
    """What is assumed, and each assumption otherwise."""

    def other(name: str, machine: Machine = assumed.machine, context: int = assumed.context, **drafter: float) -> Case:
        return Case(name, machine, replace(assumed.drafter, **drafter), context)

    drafted = assumed.drafter.length - 1
    return (
        assumed,
        other("shares 20 % worse", replace(assumed.machine, quality=0.8)),
        other("shares 20 % better", replace(assumed.machine, quality=1.2)),
        other("our kernels half as good", replace(assumed.machine, ours=0.5)),
        other("20 % fewer drafts accepted", length=1 + 0.8 * drafted),
        other("20 % more drafts accepted", length=1 + 1.2 * drafted),
        other("siblings that hit more often", second=0.6, beside=0.5),
        other("bus through the host's memory", replace(assumed.machine, bus=HOST_MEMORY)),
        other("NVLink bridge", replace(assumed.machine, bus=BRIDGE)),
        other("16384 tokens of context", context=16384),
    )


def budget(case: Case, batch: int) -> int:
    """The smallest that is as good as the fastest; one request always has drafts, by which the gate proves a service."""
    speeds = {nodes: case.speed(Arm("tree", nodes), batch) for nodes in BUDGETS if nodes or batch > 1}
    return min(nodes for nodes, speed in speeds.items() if speed >= (1 - NEAR) * max(speeds.values()))


def fastest(case: Case, batch: int) -> Arm:
    return max((Arm.of(name) for name in ARMS), key=lambda arm: case.speed(arm, batch))


def tiers(budgets: Sequence[int], batches: Sequence[int] = BATCHES) -> list[list[int]]:
    """[first, last, nodes] as the inventory has them: between two numbers of requests holds what is right for the larger."""
    found, first = list[list[int]](), 1
    for nodes, group in groupby(zip(budgets, batches, strict=True), key=lambda pair: pair[0]):
        last = max(batch for _, batch in group)
        found.append([first, last, nodes])
        first = last + 1
    return found


def products_table() -> Iterator[str]:
    yield f"{'batch x nodes':>13} {'rows':>5} {'GB/s':>6} {'TFLOP/s':>8} {'measured, ms':>13} {'model, ms':>10} {'error':>7}"
    for (batch, nodes), measured in MATRIX_MEASURED.items():
        rows = batch * (nodes + 1)
        found = (
            *target_products(QWEN36_27B, rows, 1),
            *drafter_products(QWEN36_27B, batch, DRAFTER_WIDTH, rows, 1),
        )
        model = 1e3 * sum(product.seconds(Machine(H200)) for product in found)
        moved, computed = sum(product.weights for product in found), sum(product.flops for product in found)
        yield (
            f"{f'{batch} x {nodes}':>13} {rows:5} {moved / measured / 1e6:6.0f} {computed / measured / 1e9:8.0f} "
            f"{measured:13.2f} {model:10.2f} {100 * (model / measured - 1):+6.1f}%"
        )


def calibration_table() -> Iterator[str]:
    yield f"{'arm':<9} {'batch':>5} {'measured, ms':>13} {'model, ms':>10} {'error':>7}"
    for cell in MEASURED:
        model = 1e3 * sum(step(QWEN36_27B, Arm.of(cell.arm), cell.batch, 4096, Machine(H200)).values())
        yield (
            f"{cell.arm:<9} {cell.batch:5} {cell.ms:13.2f} {model:10.2f} {100 * (model / cell.ms - 1):+6.1f}%"
            + ("" if cell.forced else "  (one token a step)" if cell.arm != "ar" else "")
        )


def speed_table(case: Case) -> Iterator[str]:
    """Every arm and batch: milliseconds a step by its parts, the range of them, tokens a step and a second."""
    low, high = (replace(case, machine=replace(case.machine, quality=quality)) for quality in (0.8, 1.2))
    heads = list(case.parts(Arm("ar"), 1))
    yield (
        f"{'arm':<9} {'batch':>5} {'ms/step':>8} {'20 % better to worse':>21} {'tokens':>7} {'tokens/s':>9}  ms of "
        + ", ".join(heads)
    )
    for batch in BATCHES:
        best = fastest(case, batch)
        for arm in map(Arm.of, ARMS):
            parts = case.parts(arm, batch)
            least, most = (1e3 * sum(one.parts(arm, batch).values()) for one in (high, low))
            yield (
                f"{arm!s:<9} {batch:5} {1e3 * sum(parts.values()):8.1f} {f'{least:.1f} to {most:.1f}':>21} "
                f"{case.length(arm):7.2f} {case.speed(arm, batch):9.1f}  "
                + " ".join(f"{1e3 * seconds:5.1f}" for seconds in parts.values())
                + ("  fastest" if arm == best else "")
            )


def choice_table(assumed: Case) -> Iterator[str]:
    yield f"{'':<30} {'chain, 31 nodes':>16} " + " ".join(f"{f'{batch} requests':>22}" for batch in BATCHES)
    for case in cases(assumed):
        lengths = f"{case.length(Arm('chain', 15)):.2f}, {case.length(Arm('tree', 31)):.2f}"
        cells = (f"{budget(case, batch)} (fastest {fastest(case, batch)})" for batch in BATCHES)
        yield f"{case.name:<30} {lengths:>16} " + " ".join(f"{cell:>22}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="an estimate of whole steps on two RTX A6000, and budgets by batch size"
    )
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--length", type=float, default=Drafter().length, help="tokens a step of the chain of 15")
    given = parser.parse_args()
    assumed = Case(drafter=Drafter(length=given.length), context=given.context)
    print("AN ESTIMATE from bytes, FLOPs and the rates of one H200; nothing was measured on an RTX A6000.")
    print("\nCalibration, dense products of a step on the H200 (GB/s of weights; both models together)")
    print(*products_table(), sep="\n")
    print("\nCalibration, whole steps on the H200")
    print(*calibration_table(), sep="\n")
    print(f"\nEstimate, 2 x RTX A6000 over PCIe, Qwen3.6-27B in bf16, {given.context} tokens of context")
    print(*speed_table(assumed), sep="\n")
    print(
        "\nEstimate, budget by the number of requests, and what would change it (tokens a step of the chain and of a tree)"
    )
    print(*choice_table(assumed), sep="\n")
    print(f"\ntable = {tiers([budget(assumed, batch) for batch in BATCHES])}")


if __name__ == "__main__":
    main()
