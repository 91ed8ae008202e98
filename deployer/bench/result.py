"""An arm in one line: what `up` and `bench` show first and `--json` carries; and the judgement of the tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from deployer.bench.model import ArmLine, Cell, Measurement
from deployer.errors import DeployError, Exit

# Below the chain by more than this is no noise: at T=0 a tree accepts at least what its spine does, step by step.
_TOLERANCE = 0.02


class BenchRegression(DeployError):
    """Slower, or accepting less, than it should be."""

    exit_code = Exit.BENCH_REGRESSION


@dataclass(frozen=True)
class Tpot:
    """Time per output token in ms, over requests."""

    median: float
    p10: float
    p90: float


@dataclass(frozen=True)
class ArmResult:
    """One arm. `acceptance_length`: tokens per step of the target; `by_position`: share of drafts accepted there."""

    name: str
    title: str
    tokens: int
    requests: int
    output_tokens: int
    tpot: Tpot
    acceptance_length: float
    by_position: tuple[float, ...]
    drafts: int
    trees: int
    off_spine: int


def summed_up(arms: Iterable[ArmLine], cells: Sequence[Cell]) -> list[ArmResult]:
    """Each measured arm at the sweep's first prompts, temperature and concurrency, over its rounds."""
    if not cells:
        return []
    first = min(cells, key=lambda cell: cell.conditions.round).conditions
    alike = ("prompts", "temperature", "concurrency")
    rounds: dict[str, list[Measurement]] = {}
    for cell in cells:
        if all(getattr(cell.conditions, name) == getattr(first, name) for name in alike):
            rounds.setdefault(cell.conditions.arm, []).append(cell.measured)
    return [_sum(arm, rounds[arm.name]) for arm in arms if arm.name in rounds]


def _sum(arm: ArmLine, rounds: Sequence[Measurement]) -> ArmResult:
    drafts = sum(one.drafts for one in rounds)
    depths = max(len(one.accepted_by_depth) for one in rounds)
    reached = [sum(_at(one, depth) * one.drafts for one in rounds) for depth in range(depths)]
    accepted = sum((one.acceptance_length - 1) * one.drafts for one in rounds)
    kind = arm.name.partition(":")[0]
    return ArmResult(
        name="autoregressive" if kind == "ar" else kind,
        title=arm.title,
        tokens=arm.tokens,
        requests=sum(one.requests for one in rounds),
        output_tokens=sum(one.output_tokens for one in rounds),
        tpot=Tpot(
            median(one.tpot.p50 for one in rounds),
            median(one.tpot.p10 for one in rounds),
            median(one.tpot.p90 for one in rounds),
        ),
        acceptance_length=1 + accepted / drafts if drafts else 1.0,
        by_position=tuple(count / drafts for count in reached) if drafts else (),
        drafts=drafts,
        trees=sum(one.trees for one in rounds),
        off_spine=sum(one.accepted_off_spine for one in rounds),
    )


def _at(one: Measurement, depth: int) -> float:
    return one.accepted_by_depth[depth] if depth < len(one.accepted_by_depth) else 0.0


def judge(arms: Iterable[ArmLine], cells: Iterable[Cell], width: int) -> None:
    """Raises BenchRegression when a tree with room for the whole chain, of the drafter's `width`, accepts less than it.

    A shorter chain is in no tree: its drafter predicts fewer tokens at a time, so these are other drafts. Greedy cells
    only: at a temperature above 0 the arms say different texts, and a difference may be theirs.
    """
    results = summed_up(arms, [cell for cell in cells if cell.conditions.temperature == "0"])
    for tree in results:
        for chain in results:
            if tree.name == "tree" and chain.name == "chain" and tree.tokens >= chain.tokens == width:
                _judge(tree, chain)


def _judge(tree: ArmResult, chain: ArmResult) -> None:
    if not tree.trees:
        raise BenchRegression(
            "the tree arm verified no tree", where="bench, tree", remedy="do not serve it; see the arm's journal"
        )
    if tree.acceptance_length < chain.acceptance_length * (1 - _TOLERANCE):
        raise BenchRegression(
            f"the tree accepts {tree.acceptance_length:.2f} tokens a step, the chain {chain.acceptance_length:.2f}",
            where="bench, tree",
            remedy="something is wrong with the tree on this pair: serve with [tree] enabled = false",
        )
