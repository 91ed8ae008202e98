"""Joins what the client, the counters and nvidia-smi saw of one cell. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from deployer.bench.model import CardUse, Conditions, Measurement, Percentiles
from deployer.errors import DeployError
from deployer.serve import metrics
from deployer.serve.metrics import Counters


def measured(
    cell: Conditions, client: Mapping[str, Any], counted: Counters, gpus: tuple[CardUse, ...], load_seconds: float
) -> Measurement:
    """One cell's numbers. Raises DeployError when requests failed: what is left of them would be no measurement."""
    failed, completed = int(client.get("failed", 0)), int(client["completed"])
    if failed or not completed:
        said = next((str(error).strip() for error in client.get("errors", ()) if error), "")
        raise DeployError(
            f"{failed} of {failed + completed} requests of the {cell.arm} arm failed: "
            f"{cell.prompts}, {cell.concurrency} at a time",
            where=f"bench, {cell.arm}",
            remedy=f"the first of them says: {said.splitlines()[-1][-300:]}"
            if said
            else "see the arm's last lines above",
        )
    texts = client.get("generated_texts", ()) if cell.temperature == "0" else ()
    return Measurement(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=float(client["duration"]),
        load_seconds=round(load_seconds, 1),
        requests=completed,
        input_tokens=int(client["total_input_tokens"]),
        output_tokens=int(client["total_output_tokens"]),
        output_tokens_per_second=float(client["output_throughput"]),
        ttft=_percentiles(client, "ttft"),
        tpot=_percentiles(client, "tpot"),
        e2e=_percentiles(client, "e2el"),
        drafts=int(counted[metrics.DRAFTS]),
        acceptance_length=counted.acceptance_length or 1.0,
        accepted_by_depth=counted.acceptance_by_position,
        accepted_by_node=counted.acceptance_by_node,
        trees=int(counted[metrics.TREES]),
        nodes=int(counted[metrics.NODES]),
        accepted_off_spine=int(counted[metrics.OFF_SPINE]),
        gpus=gpus,
        outputs=tuple(hashlib.sha256(str(text).encode()).hexdigest()[:16] for text in texts),
    )


def _percentiles(client: Mapping[str, Any], metric: str) -> Percentiles:
    return Percentiles(**{f"p{rank}": float(client[f"p{rank}_{metric}_ms"]) for rank in (10, 50, 90, 99)})


def cards(log: str) -> tuple[CardUse, ...]:
    """Reads what nvidia-smi wrote, one line per card and second; a field that it does not know stays None."""
    seen: dict[int, list[tuple[float | None, ...]]] = {}
    for line in log.splitlines():
        index, *rest = (cell.strip() for cell in line.split(","))
        if index.isdigit() and len(rest) == 4:
            seen.setdefault(int(index), []).append(tuple(_number(cell) for cell in rest))
    return tuple(_use(index, rows) for index, rows in sorted(seen.items()))


def _use(index: int, rows: list[tuple[float | None, ...]]) -> CardUse:
    memory, watts, clock, celsius = (
        [value for value in column if value is not None] for column in zip(*rows, strict=True)
    )
    return CardUse(
        index=index,
        memory_mib=int(max(memory)) if memory else None,
        watts=round(fmean(watts), 1) if watts else None,
        sm_mhz=round(fmean(clock)) if clock else None,
        celsius=max(celsius) if celsius else None,
    )


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
