"""One verb on several hosts at the same time: each in a process of its own, so that no host's end is another's.

A process holds its own connection, its own lock and its own signals: an interrupt reaches each once, and each gives
back what it holds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

import typer
from pydantic import ValidationError

from deployer.cli.display import go_on, out
from deployer.cli.document import Document, ErrorLine, Fleet, code_and_outcome
from deployer.cli.report import report
from deployer.cli.stream import Name, Stream, Unread, Unwritable
from deployer.errors import MEANINGS, DeployError, Exit, worst
from deployer.plan.signals import ENDING, held_back

NARROWEST = 60  # columns that a host's own output gets at least


@dataclass(frozen=True)
class Call:
    """A verb and its options, as a command line has them."""

    verb: str
    options: tuple[str, ...]
    local: bool = False

    def words(self, host: str, json: bool) -> list[str]:
        """The command line for one host."""
        before = ["--local"] if self.local else []
        after = ["--json"] if json else []
        return [sys.executable, "-m", "deployer", *before, *self.verb.split(), *self.options, *after, "--", host]


@dataclass
class Member:
    """One host's process and what it said. `code` stays None until it has ended."""

    host: str
    process: subprocess.Popen[str] | None = None
    code: int | None = None
    said: list[str] = field(default_factory=list)

    @property
    def exit(self) -> Exit:
        """As one of this program's own codes: a process that a signal killed ended unexpectedly."""
        if self.code is None or -self.code in ENDING:  # the latter: interrupted before it could say so itself
            return Exit.INTERRUPTED
        return Exit(self.code) if self.code in list(Exit) else Exit.UNEXPECTED


def run(call: Call, hosts: tuple[str, ...], *, parallel: int) -> None:
    """Asks all hosts, at most `parallel` at a time, and ends the program with the worst exit code."""
    go_on()
    _tell(call, ask(call, hosts, parallel=parallel, json=report.json, aloud=True))


def ask(call: Call, hosts: tuple[str, ...], *, parallel: int, json: bool, aloud: bool, width: int = 0) -> list[Member]:
    """Asks all hosts and waits for their ends. With `json` each prints a document, which its member keeps; what people
    read of them is shown while they run, or, unless `aloud`, only of those that failed.
    """
    members = [Member(host) for host in hosts]
    width = max(width, *map(len, hosts))
    columns = max(NARROWEST, out.width - width - 3)
    stopping = threading.Event()
    printing = threading.Lock()

    def ask(member: Member) -> None:
        if stopping.is_set():
            return
        prefix = f"{member.host:{width}} | "
        member.process = _started(call.words(member.host, json), columns)
        if stopping.is_set():
            member.process.send_signal(signal.SIGTERM)
        said, failed = member.process.stdout, member.process.stderr
        show = _printer("stderr", prefix, printing)
        kept: list[str] = []
        keep: Callable[[str], None] = member.said.append if json else _printer("stdout", prefix, printing)
        reader = threading.Thread(target=_each, args=(failed, show if aloud else kept.append))
        reader.start()
        _each(said, keep)
        reader.join()
        member.code = member.process.wait()
        for line in kept if member.code else ():
            show(line)

    with ThreadPoolExecutor(max_workers=parallel) as pool:
        running: list[Future[None]] = []

        def all_ended() -> None:
            # A host may be at work while the pool still starts its thread: an interrupt in there would be nobody's.
            with held_back():
                running.extend(pool.submit(ask, member) for member in members[len(running) :])
            for future in running:
                future.result()

        _wait(all_ended, members, stopping)
    return members


def _wait(for_all: Callable[[], object], members: Iterable[Member], stopping: threading.Event) -> None:
    """Until all have ended; an interrupt is passed on once to each and its end waited for.

    As SIGTERM: a process of a job in the background ignores SIGINT from its start.
    """
    try:
        for_all()
    except KeyboardInterrupt:
        stopping.set()
        for member in members:
            if member.process is not None and member.code is None:
                member.process.send_signal(signal.SIGTERM)
        for_all()


def _started(words: list[str], columns: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "COLUMNS": str(columns), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,  # a terminal's Ctrl-C comes to us alone, and from us once to each
    )


def _each(stream: IO[str] | None, take: Callable[[str], object]) -> None:
    """Until the end, or until nobody reads ours: then the process is told the same, and decides for itself."""
    assert stream is not None
    with stream, suppress(Unread, Unwritable):  # the summary says it once
        for line in stream:
            take(line)


def _printer(name: Name, prefix: str, printing: threading.Lock) -> Callable[[str], None]:
    to = Stream(name, needed=True)

    def write(line: str) -> None:
        with printing:
            to.write(f"{prefix}{line.rstrip()}\n")
            to.flush()

    return write


def _tell(call: Call, members: list[Member]) -> None:
    """The summary for people, the documents for programs, the code for both."""
    code, width = worst(member.exit for member in members), max(len(member.host) for member in members)
    for member in members:
        ended = member.exit
        meaning = f" ({int(ended)}): {MEANINGS[ended]}" if ended else ""
        out.print(f"{member.host:{width}}   {ended.label}{meaning}", markup=False)
    if report.json:
        documents = [document(call, member) for member in members]
        report.fleet = Fleet(**code_and_outcome(code), verb=call.verb, hosts=documents)
    if code is not Exit.OK:
        raise typer.Exit(int(code))


def document(call: Call, member: Member) -> Document:
    """What the host's process printed; one that printed none gets one that says so."""
    try:
        return Document.model_validate_json("".join(member.said))
    except ValidationError:
        what = "not started: interrupted" if member.process is None else "it ended without a document"
        error = DeployError(what, where=member.host, remedy="what it said is on stderr")
        return Document(**code_and_outcome(member.exit), verb=call.verb, host=member.host, error=ErrorLine.of(error))
