"""What the operator sees: plans, running steps with rate and remaining time, findings.

Everything shown here is reported too: with `--json` people are shown it on stderr, and programs read it on stdout.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import IO, cast

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from deployer.cli.report import report
from deployer.cli.stream import Stream, open_all
from deployer.facts.finding import Finding, Level
from deployer.plan.step import Plan, Step

open_all()  # a console asks its file at once whether it is a terminal
# No emoji: a log line may well have colons around a word.
_OUT = Stream("stdout", needed=True)
_ERR = Stream("stderr", needed=False)  # what is wrong is an exit code, too
_PROGRAMS = Stream("stdout", needed=False)
out = Console(file=cast(IO[str], _OUT), highlight=False, soft_wrap=True, emoji=False)
err = Console(file=cast(IO[str], _ERR), highlight=False, emoji=False)
WIDTH = 60  # characters of a running step's last line
COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


def begin(*, programs: bool) -> None:
    """A verb starts. With `programs` they read stdout, and people are shown things on stderr."""
    _OUT.begin("stderr" if programs else "stdout", needed=True)
    _ERR.begin("stderr", needed=False)
    _PROGRAMS.begin("stdout", needed=False)


def go_on() -> None:
    """From here on something is changed: that is not cut short because nobody reads of it."""
    _OUT.needed = False


def tell_programs(document: str) -> None:
    """The one document on stdout."""
    _PROGRAMS.write(document + "\n")
    _PROGRAMS.flush()


def untold() -> bool:
    """Whether the document could not be written although nothing else was to be done."""
    return _OUT.needed and _PROGRAMS.full


def show_plan(plan: Plan) -> None:
    """Steps with their reasons; nothing is done."""
    for step in plan.steps:
        report.step(step, "pending" if step.needed else "unneeded")
        mark = "[bold]+[/]" if step.needed else "[dim]=[/]"
        out.print(f"{mark} {escape(step.verb)}: {escape(step.title)}\n    [dim]{escape(step.reason)}[/]")


def show_undecided(verb: str, after: str, why: str) -> None:
    """A verb whose steps depend on an earlier one that is still to be done."""
    report.step(Step(verb, verb, f"decided after {after} ({why})"), "undecided")
    out.print(f"? {verb}: decided after {after} ({why})", markup=False)


def show_line(line: str) -> None:
    """One line of a log, as it is."""
    report.line(line)
    out.print(line, markup=False)


def warn(line: str) -> None:
    """Something went wrong that fails nothing."""
    report.warnings.append(line)
    err.print(f"warning: {line}", markup=False, style="yellow", soft_wrap=True)


def show_findings(findings: Iterable[Finding], machine: str = "") -> None:
    """What was seen and what to do; `machine` is where, when it is not the one host."""
    findings = tuple(findings)
    report.found(findings, machine)
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        colour = COLOURS[finding.level]
        remedy = f"\n[dim]do: {escape(finding.remedy)}[/]" if finding.remedy else ""
        table.add_row(f"[{colour}]{finding.level}[/]", escape(finding.subject), escape(finding.seen) + remedy)
    out.print(table)


def show_rows(rows: Iterable[tuple[str, str]]) -> None:
    """Labels and values."""
    rows = tuple(rows)
    report.rows(rows)
    table = Table(box=None, pad_edge=False, show_header=False)
    for label, value in rows:
        table.add_row(f"[dim]{escape(label)}[/]", escape(value))
    out.print(table)


class PlanDisplay:
    """A plan's progress. On a terminal the running step is live, with what it said last; elsewhere each line stays."""

    def __init__(self, console: Console = out) -> None:
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._title = ""
        self._tenth = -1

    def __enter__(self) -> PlanDisplay:
        go_on()
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def unneeded(self, step: Step) -> None:
        report.step(step, "unneeded")
        self._console.print(f"[dim]= {escape(step.verb)}: {escape(step.title)} ({escape(step.reason)})[/]")

    def begins(self, step: Step) -> None:
        report.step(step, "failed")  # until it has ended
        self._tenth = -1
        if self._console.is_terminal:
            self._title = f"{step.verb}: {escape(step.title)}"
            self._task = self._bar.add_task(self._title, total=None, amount="")
        else:
            self._console.print(f"> {escape(step.verb)}: {escape(step.title)}\n    {escape(step.reason)}")

    def ends(self, step: Step, seconds: float) -> None:
        report.step(step, "done", round(seconds, 3))
        self._remove()
        self._console.print(f"[green]+[/] {escape(step.verb)}: {escape(step.title)} [dim]{seconds:.1f} s[/]")

    def say(self, line: str) -> None:
        report.line(line)
        if self._task is None:
            self._console.print(f"    [dim]{escape(line)}[/]")
        else:
            self._bar.update(self._task, description=f"{self._title}\n    [dim]{escape(line[:WIDTH])}[/]")

    def bytes(self, done: int, total: int) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total, amount=self._amount(done, total))
            return
        tenth = 10 * done // max(total, 1)
        if tenth > self._tenth:
            self._tenth = tenth
            self._console.print(f"    {10 * tenth} % of {total} bytes")

    def _amount(self, done: int, total: int) -> str:
        """Share, rate and remaining time of the running transfer."""
        task = next(task for task in self._bar.tasks if task.id == self._task)
        rate = f", {decimal(int(task.speed))}/s" if task.speed else ""
        left = f", {task.time_remaining:.0f} s left" if task.time_remaining else ""
        return f"{100 * done // max(total, 1)} % of {decimal(total)}{rate}{left}"

    def _remove(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
