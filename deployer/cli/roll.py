"""`--rolling`: all hosts are asked for their plans, then changed one after the other, each only when the one before it
has proved itself. Before the first is touched every plan has to be good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import typer

from deployer.cli import fleet
from deployer.cli.display import go_on, out
from deployer.cli.document import Document, Fleet, RollState, TurnLine, code_and_outcome
from deployer.cli.fleet import Call, Member
from deployer.cli.report import report
from deployer.errors import MEANINGS, Exit, worst

_AFTER: dict[Exit, RollState] = {
    Exit.OK: "new",
    Exit.ROLLBACK_FAILED: "down",
    Exit.UNEXPECTED: "unknown",
    Exit.INTERRUPTED: "unknown",
}
"""What a host runs after its turn; of every other end what served serves on or was restored: old."""


@dataclass(frozen=True)
class Turn:
    """One host of a roll: what it said when it was asked for its plan."""

    host: str
    planned: Document

    @property
    def code(self) -> Exit:
        return Exit(self.planned.exit_code)

    @property
    def pending(self) -> tuple[str, ...]:
        """What is to be done; a step that depends on another one counts."""
        steps = self.planned.steps or ()
        return tuple(f"{step.verb}: {step.title}" for step in steps if step.state in ("pending", "undecided"))

    def foreseen(self) -> TurnLine:
        """Before anything is done."""
        if self.code is not Exit.OK:
            why = self.planned.error.what if self.planned.error else MEANINGS[self.code]
            return TurnLine(host=self.host, state="untouched", why=f"{self.code.label} ({int(self.code)}): {why}")
        if not self.pending:
            return TurnLine(host=self.host, state="unchanged", why="nothing to do")
        return TurnLine(host=self.host, state="pending", why=", ".join(self.pending))

    def untouched(self, why: str) -> TurnLine:
        return TurnLine(host=self.host, state="untouched", why=why)


def after(host: str, code: Exit) -> TurnLine:
    """When its turn has ended."""
    why = "it has proved itself" if code is Exit.OK else f"{code.label} ({int(code)}): {MEANINGS[code]}"
    return TurnLine(host=host, state=_AFTER.get(code, "old"), why=why)


def refused(turns: Sequence[Turn]) -> list[TurnLine]:
    """All hosts of a roll that does not begin, because one of them would end it."""
    return [
        turn.untouched("another host's plan failed") if turn.code is Exit.OK and turn.pending else turn.foreseen()
        for turn in turns
    ]


def run(call: Call, hosts: tuple[str, ...], *, parallel: int, plan_only: bool) -> None:
    """Rolls over the hosts in their order; ends the program with the worst exit code."""
    go_on()
    planning = call if plan_only else replace(call, options=(*call.options, "--plan"))
    out.print(f"asking {len(hosts)} hosts for their plans")
    asked = fleet.ask(planning, hosts, parallel=parallel, json=True, aloud=plan_only)
    turns = [Turn(member.host, fleet.document(planning, member)) for member in asked]
    code = worst(turn.code for turn in turns)
    if plan_only or code is not Exit.OK:
        lines = [turn.foreseen() for turn in turns] if plan_only else refused(turns)
        _tell(call, lines, [turn.planned for turn in turns], code)
        return
    _show([turn.foreseen() for turn in turns])
    _roll(call, turns)


def _roll(call: Call, turns: list[Turn]) -> None:
    lines: list[TurnLine] = []
    documents: list[Document] = []
    ended: Member | None = None
    width = max(len(turn.host) for turn in turns)
    for turn in turns:
        if ended is not None:
            lines.append(turn.untouched(f"the roll ended at {ended.host}") if turn.pending else turn.foreseen())
            documents.append(turn.planned)
        elif not turn.pending:
            lines.append(turn.foreseen())
            documents.append(turn.planned)
        else:
            [member] = fleet.ask(call, (turn.host,), parallel=1, json=report.json, aloud=True, width=width)
            lines.append(after(turn.host, member.exit))
            documents.append(fleet.document(call, member))
            ended = None if member.exit is Exit.OK else member
    _tell(call, lines, documents, ended.exit if ended else Exit.OK)


def _show(lines: Sequence[TurnLine]) -> None:
    width = max(len(line.host) for line in lines)
    for line in lines:
        out.print(f"{line.host:{width}}   {line.state}: {line.why}", markup=False)


def _tell(call: Call, lines: list[TurnLine], documents: list[Document], code: Exit) -> None:
    """The summary for people, the document for programs, the code for both."""
    _show(lines)
    if report.json:
        report.fleet = Fleet(**code_and_outcome(code), verb=call.verb, hosts=documents, roll=lines)
    if code is not Exit.OK:
        raise typer.Exit(int(code))
