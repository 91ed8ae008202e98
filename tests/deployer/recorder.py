"""A progress display for tests: remembers what a plan reported."""

from __future__ import annotations

from dataclasses import dataclass, field

from deployer.plan.step import Step


@dataclass
class Recorder:
    lines: list[str] = field(default_factory=list)
    amounts: list[tuple[int, int]] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def bytes(self, done: int, total: int) -> None:
        self.amounts.append((done, total))

    def unneeded(self, step: Step) -> None:
        self.skipped.append(f"{step.title}: {step.reason}")

    def begins(self, step: Step) -> None:
        self.begun.append(step.title)

    def ends(self, step: Step, seconds: float) -> None:
        self.ended.append(step.title)
