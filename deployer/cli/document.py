"""What `--json` prints: one document per call, the same for every verb. docs/json.md describes it for people.

Within format 1 keys are added, never renamed, removed or given another meaning.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from deployer import __version__
from deployer.bench.model import BenchFile
from deployer.bench.result import ArmResult
from deployer.errors import DeployError, Exit
from deployer.plan.audit import Entry
from deployer.tune.model import Tuning

FORMAT: Literal["ddtree-deploy/1"] = "ddtree-deploy/1"
RollState = Literal["pending", "new", "unchanged", "old", "down", "unknown", "untouched"]
StepState = Literal["unneeded", "pending", "undecided", "done", "failed"]


class Part(BaseModel):
    """Common ground: frozen, no other keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StepLine(Part):
    """One step of a plan, with the reason for doing it or for having nothing to do."""

    verb: str
    title: str
    reason: str
    state: StepState = Field(
        description="unneeded: satisfied already; pending: would be done; undecided: depends on a pending one; "
        "done; failed: begun and not ended"
    )
    seconds: float | None = Field(default=None, description="how long it took, when done")


class FindingLine(Part):
    """One thing that was looked at on the laptop or on a host."""

    machine: str = Field(description="of a doctor: this machine, a jump host or the box; else empty")
    level: Literal["ok", "warn", "fail"]
    subject: str
    seen: str
    remedy: str = Field(description="what to do; empty when ok")


class ErrorLine(Part):
    """Why it did not end well."""

    what: str
    where: str = Field(description="host, file, option or command")
    remedy: str = Field(description="what to do next")

    @classmethod
    def of(cls, error: DeployError) -> ErrorLine:
        return cls(what=error.what, where=error.where, remedy=error.remedy)


class Holder(Part):
    """Who holds a host's lock; all empty when its writer left no name."""

    who: str
    since: str
    verb: str


class Result(Part):
    """How a call of the program ended."""

    format: Literal["ddtree-deploy/1"] = FORMAT
    version: str = Field(default=__version__, description="of the program")
    verb: str = Field(description="empty when the command line names none")
    outcome: str = Field(description="the exit code's name: ok, usage, preflight ... (docs/exit-codes.md)")
    exit_code: int
    error: ErrorLine | None = None


class Document(Result):
    """One verb on one host. A part that a verb has nothing to say about is null."""

    host: str | None = Field(default=None, description="as it was named on the command line")
    plan_only: bool = Field(default=False, description="--plan: nothing was changed")
    changed: bool | None = Field(default=None, description="whether any step was done; null where there are no steps")
    steps: list[StepLine] | None = Field(default=None, description="what was done, or would be, and why")
    findings: list[FindingLine] | None = Field(default=None, description="what was looked at, and what to mend")
    values: dict[str, str] | None = Field(default=None, description="labels and values, as people are shown them")
    lines: list[str] | None = Field(default=None, description="what was said: a log, proofs, a running step's lines")
    bench: list[ArmResult] | None = Field(default=None, description="the arms, each in one line")
    sweep: BenchFile | None = Field(default=None, description="all that a bench measured: docs/bench.md")
    tune: Tuning | None = Field(default=None, description="what was chosen and why: docs/tune.md")
    locked_by: Holder | None = Field(default=None, description="null when nobody holds the lock")
    history: list[Entry] | None = Field(default=None, description="the host's audit log, oldest first")
    inventory: dict[str, Any] | None = Field(default=None, description="the inventory file with all defaults")
    warnings: list[str] = Field(default_factory=list, description="what went wrong and failed nothing")


class TurnLine(Part):
    """One host's turn of `--rolling`."""

    host: str
    state: RollState = Field(
        description="pending: it is to be changed (--plan); new: it runs what the inventory asks for; unchanged: it did "
        "already; old: it failed before anything stopped, or what ran before was restored; down: neither serves; unknown: "
        "its process ended without saying; untouched: the roll ended before its turn"
    )
    why: str


class Fleet(Result):
    """One verb on several hosts: their documents, in the order in which they were named. `exit_code` is the worst.

    With --rolling, `roll` says how far it came; a host whose turn did not come has the document of its plan.
    """

    hosts: list[Document]
    roll: list[TurnLine] | None = None


def code_and_outcome(code: Exit) -> dict[str, Any]:
    """The two keys that say how it ended."""
    return {"exit_code": int(code), "outcome": code.label}


def schema() -> dict[str, Any]:
    """JSON Schema of what is printed: `Document` for one host, `Fleet` for several."""
    return {part.__name__: part.model_json_schema(mode="serialization") for part in (Document, Fleet)}
