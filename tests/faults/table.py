"""The table of what was seen, printed when the session ends."""

from __future__ import annotations

import pytest

from tests.faults.causes import CAUSES
from tests.faults.play import Cell
from tests.faults.steps import STEPS

SEEN: dict[tuple[str, str], str] = {}


def note(cell: Cell, what: str) -> None:
    SEEN[cell.step.name, cell.cause.name] = what


def text() -> str:
    """One block per step: the fault, and what was seen."""
    lines = []
    for step in STEPS:
        rows = [(cause.name, SEEN[step.name, cause.name]) for cause in CAUSES if (step.name, cause.name) in SEEN]
        lines += [f"{step.name:8} | {name:14} | {what}" for name, what in rows]
    return "\n".join(lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """pytest calls this at a session's end, in every room whose conftest has it."""
    if SEEN:
        terminalreporter.section("what was seen of each fault in each step")
        terminalreporter.write_line(text())
