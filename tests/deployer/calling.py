"""The command line called in this process: what it printed for programs and for people, and its exit code."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import planted
import pytest
import tomli_w

from deployer.cli import about, app
from deployer.cli.display import begin
from deployer.cli.document import Document, Fleet
from deployer.cli.report import Report, report
from deployer.fleet.inventory import Router
from deployer.inventory.model import Inventory, Section
from deployer.inventory.tables import tables

Table = tuple[type[Section], str]
TABLES = {model: {table.first for table in tables(model)} - {""} for model in (Inventory, Router)}


@dataclass(frozen=True)
class Called:
    """One call. `code` is its exit code; `verb` is empty when the command line could not be read."""

    code: int
    stdout: str
    stderr: str
    verb: str
    read: frozenset[Table]

    @property
    def document(self) -> Document:
        """stdout as the one JSON document it has to be, held against the schema."""
        return Document.model_validate_json(self.stdout, strict=True)

    @property
    def fleet(self) -> Fleet:
        return Fleet.model_validate_json(self.stdout, strict=True)


@contextmanager
def _as_a_new_process(words: Sequence[str | Path]) -> Iterator[None]:
    """Arguments, signals and this process's report as they are at a start, and put back after."""
    before, numbers = sys.argv, (signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    sys.argv = ["ddtree-deploy", *map(str, words)]
    vars(report).update(vars(Report()))
    try:
        yield
    finally:
        sys.argv = before
        begin(programs=False)
        vars(report).update(vars(Report()))
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _watched() -> Iterator[set[Table]]:
    """Which tables of inventory files are looked into meanwhile."""
    read: set[Table] = set()

    def watching(model: type[Section]) -> Any:
        plainly: Any = model.__getattribute__

        def get(self: Section, name: str) -> Any:
            if name in TABLES[model]:
                read.add((model, name))
            return plainly(self, name)

        return get

    with pytest.MonkeyPatch.context() as patch:
        for model in TABLES:
            patch.setattr(model, "__getattribute__", watching(model))
        yield read


def _as_its_page_says(called: Called) -> None:
    """It read no other table of the inventory, and ended with no other code, than docs/verbs/ names."""
    named = {(model, table) for model, found in about.READS[called.verb].items() for table in found}
    assert called.read <= named, f"{called.verb} reads {called.read - named}: deployer/cli/about.py says nothing of it"
    assert called.code in about.codes(called.verb), f"{called.verb} ends with {called.code}: deployer/cli/about.py"


@dataclass(frozen=True)
class Caller:
    """Calls the program and keeps watch over what it prints."""

    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: str | Path) -> Called:
        self.capture.readouterr()
        with _as_a_new_process(words), _watched() as read:
            with pytest.raises(SystemExit) as ended:
                app.main()
            verb = {"bench": "bench run"}.get(report.verb, report.verb)
        said = self.capture.readouterr()
        assert planted.SECRET not in said.out + said.err
        called = Called(int(str(ended.value.code)), said.out, said.err, verb, frozenset(read))
        if verb:
            _as_its_page_says(called)
        return called

    def json(self, *words: str | Path) -> Document:
        """The same with --json: one document, its exit code the process's own."""
        called = self(*words, "--json")
        document = called.document
        assert document.exit_code == called.code
        assert json.loads(called.stdout)["format"] == "ddtree-deploy/1"
        filled = {part for part in about.PARTS if getattr(document, part) is not None}
        assert filled <= set(about.FILLS.get(called.verb, ())), f"{called.verb} fills {filled}: deployer/cli/about.py"
        return document


def write_inventory(inventory: Inventory, path: Path, **changes: Any) -> Path:
    """A file that loads as `inventory`."""
    data = inventory.model_dump(mode="json", exclude_none=True)
    path.write_text(tomli_w.dumps({**data, **changes}))
    return path
