"""What the tests of `tune` on a stand-in host have in common: its speeds, what is asked, and its stages carried out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench_host import HELD, SERVICE, BenchHost, Box, inventory
from calling import write_inventory

from deployer.bench.sweep import sweep_of
from deployer.cli import host as cli_host
from deployer.inventory.model import Inventory
from deployer.plan.apply import Silent, run
from deployer.plan.step import Plan
from deployer.serve.gate import Clock
from deployer.tune.found import Tune
from deployer.tune.plan import confirming, measuring, writing

WORDS = ("--arms", "ar,chain:7,tree:7,tree:31", "--concurrency", "1,2", "--rounds", "1")
BY_THE_SERVICE = re.sub(r"[\w@-]+\.service", f"{SERVICE}.service", HELD)  # GPUs that the service holds


def speed(arm: str, requests: int) -> float:
    """The stand-in's: a tree of 31 is the best for one request, one of 7 for two; by batch size, as its parts."""
    for tier in arm.partition(":")[2].split("+"):
        tokens, at, up_to = tier.partition("@")
        if at and requests <= int(up_to):
            return speed(f"tree:{tokens}", requests)
    known = {"ar": (50, 100), "chain:7": (80, 130), "tree:7": (85, 150), "tree:31": (99, 120)}
    return float(known[arm][requests - 1])


def standing_in(box: Box) -> BenchHost:
    """The host, with what a deployment's lock and log ask."""
    made = BenchHost(box)
    quiet = (r"^mkdir -p /run/lock", r"^grep -qsF", r"^test -d /", r"^rmdir", r"^cat \S*audit\.log", r"^tail")
    made.answers |= {re.compile(pattern): "" for pattern in quiet}
    return made


def without_waiting(patch: pytest.MonkeyPatch) -> None:
    """A clock that nobody gave another time stands still, and nobody sleeps by it."""

    def still(
        clock: Clock, now: Callable[[], float] = lambda: 0.0, sleep: Callable[[float], None] = lambda seconds: None
    ) -> None:
        clock.now, clock.sleep = now, sleep

    patch.setattr(Clock, "__init__", still)


def reached_by_name(host: BenchHost, path: Path, patch: pytest.MonkeyPatch, subject: Inventory | None = None) -> Path:
    """An inventory's file whose host is the stand-in."""

    @contextmanager
    def opened(*args: object, **options: object) -> Iterator[BenchHost]:
        yield host

    patch.setattr(cli_host, "opened", opened)
    return write_inventory(subject or inventory(), path)


def asked(file: Path, *, overwrite: bool = False, rounds: int = 2, concurrency: str = "1,2") -> Tune:
    sweep = sweep_of(inventory(), arms="ar,chain:7,tree:7,tree:31", concurrency=concurrency, rounds=rounds)
    return Tune(sweep, file, overwrite)


def ran(box: Box) -> list[str]:
    """The clients' runs."""
    return [line for line in box.log if re.match(r"\S+ c\d", line)]


def applied(made: Plan) -> Plan:
    run(made, Silent())
    return made


def done(tune: Tune, host: BenchHost, subject: Inventory | None = None) -> None:
    subject = subject or inventory()
    for stage in (measuring, confirming, writing):
        applied(stage(tune, subject, host))
