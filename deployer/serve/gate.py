"""The gate: a new service has to prove itself before it replaces what served before.

/health alone can say 200 on an engine that hangs, so the proof is a completion with a known answer, drafts that are
accepted, and, with a tree, trees that are verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from deployer.errors import GateError
from deployer.facts.service import ServiceState
from deployer.inventory.model import Inventory
from deployer.serve import metrics
from deployer.serve.decoding import Decoding
from deployer.serve.endpoint import Answer, Completion
from deployer.serve.metrics import Counters

_POLL = 1.0
SCRAPE = 0.5  # the workers publish the tree's counters twice a second
_SCRAPES = 8
_SILENT = 120.0  # seconds without a line in the journal before the operator is told
PROOF_TOKENS = 48


class Subject(Protocol):
    """What the gate asks of a service."""

    @property
    def where(self) -> str:
        """Its host and port, for errors."""
        ...

    def state(self) -> ServiceState:
        """As systemd says."""
        ...

    def journal(self, lines: int) -> tuple[str, ...]:
        """The last lines since the service started, oldest first."""
        ...

    def ask(self, path: str) -> Answer:
        """GET."""
        ...

    def models(self) -> tuple[str, ...]:
        """The names that it serves."""
        ...

    def complete(self, prompt: str, tokens: int, timeout: float) -> Completion:
        """A greedy completion."""
        ...

    def counters(self) -> Counters:
        """A scrape of /metrics."""
        ...


@dataclass(frozen=True)
class Wanted:
    """What has to be proved, and within how many seconds."""

    model: str
    prompt: str
    expect: str | None
    min_acceptance_length: float
    decoding: Decoding
    timeout: float

    @classmethod
    def of(cls, inventory: Inventory, decoding: Decoding) -> Wanted:
        serve = inventory.serve
        return cls(
            serve.served_model_name,
            serve.prompt,
            serve.expect,
            serve.min_acceptance_length,
            decoding,
            serve.gate_timeout,
        )


@dataclass(frozen=True)
class Proof:
    """What the service showed. `judged` is False when others hid whether it speculates: the rest holds all the same."""

    seconds: float
    text: str
    acceptance_length: float | None
    trees: int
    off_spine: int
    judged: bool = True

    def __str__(self) -> str:
        tree = f", {self.trees} trees, {self.off_spine} tokens accepted off the spine" if self.trees else ""
        length = f", acceptance length {self.acceptance_length:.2f}" if self.acceptance_length else ""
        return f"serving after {self.seconds:.0f} s{length}{tree}"


@dataclass
class Clock:
    """Time, replaceable."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def prove(subject: Subject, wanted: Wanted, say: Callable[[str], None], clock: Clock | None = None) -> Proof:
    """Waits for the service and lets it prove itself. Raises GateError that names the phase and what was seen."""
    clock = clock or Clock()
    start = clock.now()
    deadline = start + wanted.timeout
    _until_healthy(subject, deadline, say, clock)
    say(f"/health answers after {clock.now() - start:.0f} s")
    names = subject.models()
    if wanted.model not in names:
        raise GateError(
            f"/v1/models lists {', '.join(names) or 'nothing'}, not {wanted.model}",
            where=subject.where,
            remedy="another service answers on this port, or [serve] served_model_name was changed: serve again",
        )
    before = subject.counters()
    text = _known_completion(subject, wanted, max(deadline - clock.now(), 10.0))
    say(f"completion of {wanted.prompt!r}: {text[:60]!r}")
    counted, judged = _speculation(subject, wanted, before, say, clock)
    return Proof(
        clock.now() - start,
        text,
        counted.acceptance_length,
        int(counted[metrics.TREES]),
        int(counted[metrics.OFF_SPINE]),
        judged,
    )


def _until_healthy(subject: Subject, deadline: float, say: Callable[[str], None], clock: Clock) -> None:
    restarts, spoke, last, warned = subject.state().restarts, clock.now(), "", False
    while True:
        state = subject.state()
        _still_starting(subject, state, restarts)
        if state.running and subject.ask("/health").ok:
            return
        line = (subject.journal(1) or ("",))[-1]
        if line != last:
            last, spoke, warned = line, clock.now(), False
            say(line[:160])
        elif clock.now() - spoke > _SILENT and not warned:
            say(f"silent for {_SILENT:.0f} s; with two GPUs suspect NCCL (try NCCL_P2P_DISABLE=1)")
            warned = True
        if clock.now() > deadline:
            raise GateError(
                "/health did not answer within the gate's time",
                where=subject.where,
                remedy=_last_error(subject.journal(200)),
            )
        clock.sleep(_POLL)


def _still_starting(subject: Subject, state: ServiceState, restarts: int) -> None:
    if state.restarts > restarts or state.active in ("failed", "inactive"):
        why = _last_error(subject.journal(200))
        raise GateError("the service ended while it was starting", where=subject.where, remedy=why)


def _last_error(lines: tuple[str, ...]) -> str:
    """The line of a journal that most probably names the cause."""
    for mark in ("Error:", "error:", "ERROR", "Failed", "Killed"):
        found = [line for line in lines if mark in line and "Engine core initialization failed" not in line]
        if found:
            return f"its journal says: {found[-1].strip()[-300:]}"
    return f"its journal ends with: {lines[-1].strip()[-300:]}" if lines else "its journal is empty"


def _known_completion(subject: Subject, wanted: Wanted, timeout: float) -> str:
    text = subject.complete(wanted.prompt, PROOF_TOKENS, timeout).text
    wrong = None
    if wanted.expect is not None and wanted.expect not in text:
        wrong = f"is {text[:120]!r}, without {wanted.expect!r}"
    elif not text.strip():
        wrong = "is empty"
    if wrong is not None:
        raise GateError(
            f"the completion of {wanted.prompt!r} {wrong}",
            where=subject.where,
            remedy="correct [serve] prompt and expect if the answer is right; else with two GPUs suspect NCCL's all-reduce "
            "(NCCL_P2P_DISABLE=1), with one the target's files",
        )
    return text


def _speculation(
    subject: Subject, wanted: Wanted, before: Counters, say: Callable[[str], None], clock: Clock
) -> tuple[Counters, bool]:
    """What the completion counted, and whether that could be judged. Raises GateError when it was, and is not enough."""
    if wanted.decoding.kind == "autoregressive":
        return subject.counters().since(before), True
    names = [metrics.DRAFTS, *([metrics.TREES, metrics.NODES] if wanted.decoding.kind == "tree" else [])]
    now, still = until_risen(subject, before, names, clock)
    counted = now.since(before)
    if still and crowded(wanted.decoding, before, now, PROOF_TOKENS):
        say("others run, with whom nothing is drafted by the table: whether drafts are accepted cannot be seen now")
        return counted, False
    if still:
        raise GateError(
            f"{still[0]} did not rise during a completion: the service answers, but without speculation",
            where=subject.where,
            remedy="see its journal for the plugin ddtree and the drafter: ddtree-deploy logs",
        )
    length = counted.acceptance_length or 1.0
    if length < wanted.min_acceptance_length:
        raise GateError(
            f"acceptance length {length:.2f} is below {wanted.min_acceptance_length}",
            where=subject.where,
            remedy="the text is right and the drafts are not: check the drafter's profile and its target_layer_ids",
        )
    return counted, True


def until_risen(
    subject: Subject, before: Counters, names: Sequence[str], clock: Clock
) -> tuple[Counters, tuple[str, ...]]:
    """Waits a moment for counters that the workers publish late; a scrape, and the names that did not rise until then."""
    for attempt in range(_SCRAPES):
        if attempt:
            clock.sleep(SCRAPE)
        now = subject.counters()
        still = tuple(name for name in names if now[name] <= before[name])
        if not still:
            break
    return now, still


def crowded(decoding: Decoding, before: Counters, now: Counters, own: int) -> bool:
    """Whether requests of `own` tokens together had company, and the table has a number of requests with which nothing
    is drafted.
    """
    return accompanied(before, now, own) and any(not tokens for *_, tokens in decoding.table)


def accompanied(before: Counters, now: Counters, own: int) -> bool:
    """Whether others ran beside requests of `own` tokens together."""
    more = now[metrics.GENERATED] - before[metrics.GENERATED] > own
    return more or before[metrics.RUNNING] > 0 or now[metrics.RUNNING] > 0
