"""What an arm measured, and the table of all arms."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from deployer.errors import DeployError, Exit
from deployer.serve import metrics
from deployer.serve.metrics import Counters

# Below the chain by more than this is no noise: at T=0 a tree accepts at least what its spine does, step by step.
_TOLERANCE = 0.02
CPU_REMARK = "Measured with Triton's interpreter on a CPU: acceptance is real, times say nothing about a GPU's speed."


class BenchRegression(DeployError):
    """The tree accepts less than the chain it contains."""

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

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ArmResult:
        data: dict[str, Any] = json.loads(text)
        return cls(**{**data, "tpot": Tpot(**data["tpot"]), "by_position": tuple(data["by_position"])})


def measured(name: str, title: str, tokens: int, client: Mapping[str, Any], counted: Counters) -> ArmResult:
    """Joins the client's times with the counters' difference. Raises DeployError when requests failed."""
    failed, completed = int(client.get("failed", 0)), int(client["completed"])
    if failed or not completed:
        raise DeployError(
            f"{failed} of {failed + completed} requests of the {title} arm failed",
            where=f"bench, {name}",
            remedy="the arm's last lines are above; run the bench again",
        )
    return ArmResult(
        name=name,
        title=title,
        tokens=tokens,
        requests=completed,
        output_tokens=int(client["total_output_tokens"]),
        tpot=Tpot(float(client["median_tpot_ms"]), float(client["p10_tpot_ms"]), float(client["p90_tpot_ms"])),
        acceptance_length=counted.acceptance_length or 1.0,
        by_position=counted.acceptance_by_position,
        drafts=int(counted[metrics.DRAFTS]),
        trees=int(counted[metrics.TREES]),
        off_spine=int(counted[metrics.OFF_SPINE]),
    )


def judge(results: Sequence[ArmResult]) -> None:
    """Raises BenchRegression when the tree, with room for the whole chain, accepts less than the chain."""
    arms = {result.name: result for result in results}
    tree, chain = arms.get("tree"), arms.get("chain")
    if tree is None or chain is None or tree.tokens < chain.tokens:
        return
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


def table(results: Sequence[ArmResult], remark: str | None, width: int = 118) -> str:
    """The arms as text."""
    grid = Table(title="bench", title_justify="left")
    for heading in (
        "arm",
        "acceptance length",
        "by position",
        "TPOT ms (p10 to p90)",
        "speed-up",
        "trees",
        "off spine",
    ):
        grid.add_column(heading, justify="left" if heading in ("arm", "by position") else "right")
    base = next((result.tpot.median for result in results if result.name == "autoregressive"), None)
    for result in results:
        grid.add_row(*_cells(result, base))
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False)
    console.print(grid)
    if remark:
        console.print(remark)
    return out.getvalue()


def _cells(result: ArmResult, base: float | None) -> tuple[str, ...]:
    plain = result.name == "autoregressive"
    return (
        result.title,
        "1" if plain else f"{result.acceptance_length:.2f}",
        "-" if plain else " ".join(f"{share:.2f}".removeprefix("0") for share in result.by_position[:15]),
        f"{result.tpot.median:.1f} ({result.tpot.p10:.1f} to {result.tpot.p90:.1f})",
        f"{base / result.tpot.median:.2f}x" if base and result.tpot.median else "-",
        str(result.trees) if result.trees else "-",
        str(result.off_spine) if result.trees else "-",
    )
