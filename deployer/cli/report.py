"""What this call of the program has to report: gathered while people are shown it, printed at its end for `--json`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from deployer.bench.model import BenchFile
from deployer.bench.result import ArmResult
from deployer.cli.document import (
    Document,
    ErrorLine,
    FindingLine,
    Fleet,
    Holder,
    StepLine,
    StepState,
    code_and_outcome,
)
from deployer.errors import DeployError, Exit
from deployer.facts.finding import Finding
from deployer.plan.audit import Entry
from deployer.plan.lock import Owner
from deployer.plan.step import Step
from deployer.tune.model import Tuning


@dataclass
class Report:
    """Parts stay None until a verb speaks of them. One process carries out one verb: there is one Report."""

    json: bool = False
    verb: str = ""
    host: str | None = None
    plan_only: bool = False
    steps: list[StepLine] | None = None
    findings: list[FindingLine] | None = None
    values: dict[str, str] | None = None
    lines: list[str] | None = None
    bench: list[ArmResult] | None = None
    sweep: BenchFile | None = None
    tune: Tuning | None = None
    locked_by: Holder | None = None
    history: list[Entry] | None = None
    inventory: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    fleet: Fleet | None = None
    printed: bool = False

    def begin(self, verb: str, host: str | None, *, plan_only: bool) -> None:
        """A verb starts."""
        self.verb, self.host, self.plan_only = verb, host, plan_only

    def step(self, step: Step, state: StepState, seconds: float | None = None) -> None:
        """A step as it stands now; the same step again replaces what was said of it."""
        line = StepLine(verb=step.verb, title=step.title, reason=step.reason, state=state, seconds=seconds)
        self.steps = self.steps or []
        if self.steps and self.steps[-1].state == "failed" and self.steps[-1].title == step.title:
            self.steps.pop()
        self.steps.append(line)

    def found(self, findings: Iterable[Finding], machine: str) -> None:
        made = [
            FindingLine(machine=machine, level=f.level.value, subject=f.subject, seen=f.seen, remedy=f.remedy)
            for f in findings
        ]
        self.findings = (self.findings or []) + made

    def rows(self, rows: Iterable[tuple[str, str]]) -> None:
        self.values = (self.values or {}) | dict(rows)

    def line(self, line: str) -> None:
        if self.json:  # else a log that is followed for days would be kept for nobody
            self.lines = self.lines or []
            self.lines.append(line)

    def owner(self, owner: Owner | None) -> None:
        self.locked_by = Holder(who=owner.who, since=owner.since, verb=owner.verb) if owner else None

    def document(self, code: Exit, error: DeployError | None = None) -> Document:
        """Everything gathered so far."""
        return Document(
            **code_and_outcome(code),
            verb=self.verb,
            error=ErrorLine.of(error) if error else None,
            host=self.host,
            plan_only=self.plan_only,
            changed=None if self.steps is None else any(line.state == "done" for line in self.steps),
            steps=self.steps,
            findings=self.findings,
            values=self.values,
            lines=self.lines,
            bench=self.bench,
            sweep=self.sweep,
            tune=self.tune,
            locked_by=self.locked_by,
            history=self.history,
            inventory=self.inventory,
            warnings=self.warnings,
        )

    def text(self, code: Exit, error: DeployError | None = None) -> str:
        """The one document of this call, as JSON."""
        self.printed = True
        return (self.fleet or self.document(code, error)).model_dump_json(indent=2)


report = Report()
