"""vLLM's /metrics as numbers: counters, their differences, and what they say about speculation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
TREES = "vllm:ddtree_trees_total"
NODES = "vllm:ddtree_nodes_total"
OFF_SPINE = "vllm:ddtree_accepted_off_spine_total"
PER_DEPTH = "vllm:ddtree_accepted_per_depth_total"
PER_NODE = "vllm:ddtree_accepted_per_node_total"
_PLACES = {PER_POSITION: "position", PER_DEPTH: "depth", PER_NODE: "node"}
GENERATED, RUNNING = "vllm:generation_tokens_total", "vllm:num_requests_running"
TOKENS = ((GENERATED, "generated"), ("vllm:prompt_tokens_total", "prompt"))
REQUESTS = ((RUNNING, "running"), ("vllm:num_requests_waiting", "waiting"))
Key = TypeVar("Key", str, int)


@dataclass(frozen=True)
class Counters:
    """One scrape, summed over engines: a name's value, and those that are counted per position, depth or node."""

    totals: Mapping[str, float]
    per_position: Mapping[int, float]
    per_depth: Mapping[int, float]
    per_node: Mapping[int, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        return self.totals.get(name, 0.0)

    def since(self, before: Counters) -> Counters:
        """What was counted between `before` and now."""
        return Counters(
            _difference(self.totals, before.totals),
            _difference(self.per_position, before.per_position),
            _difference(self.per_depth, before.per_depth),
            _difference(self.per_node, before.per_node),
        )

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per step of the target, 1 + accepted / drafts; None before the first draft."""
        return 1 + self[ACCEPTED] / self[DRAFTS] if self[DRAFTS] else None

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Share of drafts whose k-th token was accepted, k = 1, 2, ...; for a tree its k-th depth."""
        drafts, counted = self[DRAFTS], self.per_depth if self[TREES] else self.per_position
        return tuple(counted[position] / drafts for position in sorted(counted)) if drafts else ()

    @property
    def acceptance_by_node(self) -> tuple[float, ...]:
        """Share of trees whose i-th node was accepted, i = 1, 2, ... to the last that ever was."""
        last = max((node for node, count in self.per_node.items() if count), default=0)
        return tuple(self.per_node.get(node, 0.0) / self[TREES] for node in range(1, last + 1)) if self[TREES] else ()


def parse(text: str) -> Counters:
    """Reads Prometheus' text format."""
    totals: dict[str, float] = {}
    by_place: dict[str, dict[int, float]] = {name: {} for name in _PLACES}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        name, value = match["name"], float(match["value"])
        totals[name] = totals.get(name, 0.0) + value
        if name in by_place:
            labels = dict(_LABEL.findall(match["labels"] or ""))
            place = int(labels.get(_PLACES[name]) or "0")
            by_place[name][place] = by_place[name].get(place, 0.0) + value
    return Counters(totals, *by_place.values())


def _difference(now: Mapping[Key, float], before: Mapping[Key, float]) -> dict[Key, float]:
    return {key: value - before.get(key, 0.0) for key, value in now.items()}
