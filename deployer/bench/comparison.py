"""A comparison as people read it: lines for a terminal, Markdown for a pull request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deployer.bench.compare import Change, Comparison

_HEADINGS = (
    ("worse", "Worse"),
    ("better", "Better"),
    ("unknown", "Not judged: no second round"),
    ("same", "The same within the noise"),
)


def summary(found: Comparison) -> str:
    """One sentence."""
    counts = {verdict: len(found.of(verdict)) for verdict, _ in _HEADINGS}
    total = len(found.changes)
    if counts["unknown"] == total:
        return f"None of {total} numbers can be judged: nothing was measured twice. Bench with --rounds 3."
    if not counts["worse"] and not counts["better"]:
        return f"No change beyond the noise in {total} numbers."
    return f"{counts['worse']} of {total} numbers got worse and {counts['better']} better by more than the noise."


def lines(found: Comparison) -> list[str]:
    """For a terminal: what changed, one line each, then the sentence."""
    said = [
        f"{verdict}: {_where(change)}: {_what(change)}"
        for verdict in ("worse", "better")
        for change in found.of(verdict)
    ]
    if not said and found.of("unknown"):
        said = [f"not judged: {_where(change)}: {_what(change)}" for change in found.of("unknown")]
    return [
        *said,
        *(f"differs: {what}" for what in found.differs),
        *(f"not compared: {what}" for what in found.alone),
        summary(found),
    ]


def markdown(found: Comparison) -> str:
    """For a pull request: the sentence, what changed as tables, and the rest folded away."""
    parts = [f"**{summary(found)}**", *_bullets("What else differs", found.differs)]
    for verdict, heading in _HEADINGS:
        changes = found.of(verdict)
        if changes and verdict in ("worse", "better"):
            parts += [f"### {heading}", _table(changes)]
        elif changes:
            parts.append(f"<details><summary>{heading} ({len(changes)})</summary>\n\n{_table(changes)}\n\n</details>")
    return "\n\n".join([*parts, *_bullets("Not compared", found.alone)]) + "\n"


def _bullets(heading: str, words: Sequence[str]) -> list[str]:
    return [f"{heading}:\n\n" + "\n".join(f"- {_escaped(word)}" for word in words)] if words else []


def _table(changes: Iterable[Change]) -> str:
    rows = [
        f"| {_escaped(change.arm)} | {_escaped(change.place.prompts)} | {change.place.temperature} | {change.place.concurrency} "
        f"| {change.name} | {change.then:.2f} | {change.now:.2f} | {_percent(change.ratio)} | {_interval(change)} |"
        for change in changes
    ]
    head = "| arm | prompts | T | at a time | number | before | now | change | interval |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|---|", *rows])


def _where(change: Change) -> str:
    place = change.place
    return f"{change.arm}, {place.prompts}, T={place.temperature}, {place.concurrency} at a time"


def _what(change: Change) -> str:
    return (
        f"{change.name} {change.then:.2f} before, {change.now:.2f} now: {_percent(change.ratio)} ({_interval(change)})"
    )


def _interval(change: Change) -> str:
    if change.low is None or change.high is None:
        return "no interval"
    return f"{_percent(change.low)} to {_percent(change.high)}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _escaped(word: str) -> str:
    return word.replace("|", "\\|").replace("<", "&lt;")
