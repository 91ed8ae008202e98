"""The results as a few short tables."""

from __future__ import annotations

from typing import Any


def all_tables(results: dict[str, Any]) -> str:
    parts = [acceptance, over_chain, equal, siblings, tried, paid]
    return "\n\n".join(text for part in parts if (text := part(results)))


def _kinds(results: dict[str, Any]) -> list[str]:
    first = next(iter(results["arms"].values()), {})
    return list(next(iter(first.values()), {}))


def _row(head: str, cells: list[str]) -> str:
    return f"{head:<16}" + "".join(f"{cell:>18}" for cell in cells)


def acceptance(results: dict[str, Any]) -> str:
    """Tokens per step with its interval, by arm and set; the share accepted off the spine behind a tree's total."""
    kinds, lines = _kinds(results), []
    for heat in dict.fromkeys(h for arm in results["arms"].values() for h in arm):
        lines.append(_row(f"tokens/step T={heat}", kinds))
        for arm, found in results["arms"].items():
            if arm.startswith("ar"):
                continue
            cells = ["{:.2f} [{:.2f} {:.2f}]".format(*found[heat][kind]["acceptance"]) for kind in kinds]
            off = found[heat]["all"].get("off_spine")
            lines.append(_row(arm, cells) + (f"  off spine {off:.2f}" if off is not None else ""))
    return "\n".join(lines)


def over_chain(results: dict[str, Any]) -> str:
    kinds, lines = _kinds(results), []
    for heat, by_kind in results.get("ratios", {}).items():
        lines.append(_row(f"tree/chain T={heat}", [f"{kind} ({by_kind[kind]['best_chain']})" for kind in kinds]))
        for arm in [arm for arm in by_kind["all"] if arm != "best_chain"]:
            lines.append(_row(arm, ["{:.3f} [{:.2f} {:.2f}]".format(*by_kind[kind][arm]) for kind in kinds]))
    return "\n".join(lines)


def equal(results: dict[str, Any]) -> str:
    """Greedy outputs equal to ar's, and the largest gap at which one parted."""
    found = results.get("equality", {})
    lines = [
        f"{arm:<12} {cell['equal']} of {cell['of']}" + (
            f", largest gap where apart {max(cell['gaps_where_apart']):.3f}" if cell["gaps_where_apart"] else ""
        ) for arm, cell in found.items()
    ]  # fmt: skip
    return "\n".join(["greedy outputs equal to ar's", *lines]) if found else ""


def siblings(results: dict[str, Any]) -> str:
    """Where the target's token stands among the drafter's ranks on the spine, and rank 0 after a sibling."""
    lines = []
    for heat, found in results.get("offline", {}).items():
        rates = found["hit_rates"]
        lines.append(f"T={heat}  depth  blocks  rank 0    1    2    3  after sibling  confidence  entropy")
        for depth in [d for d in (0, 1, 2, 3, 5, 7, 11, 14) if d < len(rates["spine"])]:
            ranks = " ".join(f"{rate:.2f}" for rate in rates["spine"][depth][:4])
            rest = [rates[key][depth] for key in ("after_sibling", "confidence", "entropy")]
            shown = "".join(f"{'-' if value is None else format(value, '.2f'):>12}" for value in rest)
            lines.append(f"{'':<8}{depth + 1:>4}{rates['blocks'][depth]:>8}    {ranks}{shown}")
    return "\n".join(lines)


def tried(results: dict[str, Any]) -> str:
    """Acceptance of other ways to grow trees, simulated."""
    lines = []
    for heat, found in results.get("simulated", {}).items():
        for policy, by_budget in found["policies"].items():
            cells = "  ".join(
                f"{budget}: {value[0]:.3f} [{value[1]:.2f} {value[2]:.2f}]" for budget, value in by_budget.items()
            )
            lines.append(f"T={heat} simulated, {policy:<24} {cells}")
    return "\n".join(lines)


def paid(results: dict[str, Any]) -> str:
    """Simulated tokens a millisecond at the 27B's cost of a step, by card and batch; tokens and nodes a step behind it."""
    lines = []
    for heat, found in results.get("simulated", {}).items():
        for place, cells in found["paid"].items():
            for name, cell in cells.items():
                shown = "{:.4f} [{:.4f} {:.4f}] tokens/ms".format(*cell["tokens_per_ms"])
                of_a_step = f"{cell['tokens']:.2f} tokens and {cell['nodes']:.1f} nodes a step"
                lines.append(f"T={heat} {place:<24} {name:<18} {shown}, {of_a_step}")
    return (
        "\n".join(["simulated on SmolLM2's or the hybrid's traces, at the 27B's cost of a step", *lines])
        if lines
        else ""
    )
