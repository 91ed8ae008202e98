"""The table: which fault in which step, how the run that is hit may end, and what becomes of what served before."""

from __future__ import annotations

from tests.faults.causes import (
    CRASHED,
    DISK_FULL,
    LINK_CUT,
    REBOOTED,
    SSHD_KILLED,
    TOOL_KILLED,
    TWO_DEPLOYERS,
    Cause,
)
from tests.faults.play import Cell, Old
from tests.faults.steps import BENCH, GATE, INSTALL, PUSH, START, Step

KILLED = -9
OK, PREFLIGHT, TRANSFER, INSTALLING, GATE_FAILED = 0, 3, 4, 5, 6


def _cell(step: Step, cause: Cause, codes: set[int], *olds: Old, mended_at: str | None = None) -> Cell:
    return Cell(step, cause, frozenset(codes), frozenset(olds), mended_at, second=cause is TWO_DEPLOYERS)


_ON, _BACK, _NEW = Old.UNTOUCHED, Old.BACK, Old.REPLACED

CELLS = (
    _cell(PUSH, LINK_CUT, {OK}, _NEW, mended_at="; continuing"),
    _cell(PUSH, SSHD_KILLED, {OK}, _NEW),
    _cell(PUSH, TOOL_KILLED, {KILLED}, _ON),
    _cell(PUSH, DISK_FULL, {TRANSFER}, _ON),
    _cell(PUSH, REBOOTED, {OK, TRANSFER}, _NEW, _BACK),
    _cell(PUSH, CRASHED, {OK}, _NEW),
    _cell(PUSH, TWO_DEPLOYERS, {OK}, _NEW),
    _cell(BENCH, LINK_CUT, {TRANSFER}, _ON),
    _cell(BENCH, SSHD_KILLED, {OK, TRANSFER}, _NEW, _ON),
    _cell(BENCH, TOOL_KILLED, {KILLED}, _ON),
    _cell(BENCH, DISK_FULL, {PREFLIGHT}, _ON),
    _cell(BENCH, REBOOTED, {TRANSFER}, _BACK),
    _cell(BENCH, CRASHED, {OK}, _NEW),
    _cell(BENCH, TWO_DEPLOYERS, {OK}, _NEW),
    _cell(START, LINK_CUT, {TRANSFER, GATE_FAILED}, _BACK),
    _cell(START, SSHD_KILLED, {TRANSFER, GATE_FAILED}, _BACK),
    _cell(START, TOOL_KILLED, {KILLED}, _BACK),
    _cell(START, DISK_FULL, {GATE_FAILED}, _BACK),
    _cell(START, REBOOTED, {TRANSFER, GATE_FAILED}, _BACK),
    _cell(START, CRASHED, {OK}, _NEW),
    _cell(START, TWO_DEPLOYERS, {OK}, _NEW),
    _cell(GATE, LINK_CUT, {TRANSFER, GATE_FAILED}, _BACK),
    _cell(GATE, SSHD_KILLED, {TRANSFER, GATE_FAILED}, _BACK),
    _cell(GATE, TOOL_KILLED, {KILLED}, _BACK),
    _cell(GATE, DISK_FULL, {GATE_FAILED}, _BACK),
    _cell(GATE, REBOOTED, {TRANSFER, GATE_FAILED}, _BACK),
    _cell(GATE, CRASHED, {GATE_FAILED}, _BACK),
    _cell(GATE, TWO_DEPLOYERS, {OK}, _NEW),
    _cell(INSTALL, LINK_CUT, {TRANSFER}, _ON),
    _cell(INSTALL, SSHD_KILLED, {TRANSFER}, _ON),
    _cell(INSTALL, TOOL_KILLED, {KILLED}, _ON),
    _cell(INSTALL, DISK_FULL, {INSTALLING}, _ON),
    _cell(INSTALL, REBOOTED, {TRANSFER}, _BACK),
    _cell(INSTALL, CRASHED, {OK}, _NEW),
    _cell(INSTALL, TWO_DEPLOYERS, {OK}, _NEW),
)

# Of the tests of the main job, on its box, where both deployments have the same drafter and the same release: what most is at
# stake in runs in `make test`, the other in `make test-full` too.
SAMPLE = tuple(cell for cell in CELLS if cell.cause is TOOL_KILLED and cell.step in (PUSH, GATE))
