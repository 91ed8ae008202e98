"""A judgement about one fact."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """`fail` stops a deployment, `warn` is said aloud, `ok` is shown."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was seen, and (unless ok) what to do."""

    level: Level
    subject: str
    seen: str
    remedy: str = ""


def judged(good: bool, subject: str, seen: str, remedy: str, *, otherwise: Level = Level.FAIL) -> Finding:
    """An `ok` finding, or one that carries the remedy."""
    return Finding(Level.OK, subject, seen) if good else Finding(otherwise, subject, seen, remedy)


def failures(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.level is Level.FAIL)
