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

from deployer.cli import app
from deployer.cli.display import begin
from deployer.cli.document import Document, Fleet
from deployer.cli.report import Report, report
from deployer.inventory.model import Inventory


@dataclass(frozen=True)
class Called:
    """One call. `code` is its exit code."""

    code: int
    stdout: str
    stderr: str

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


@dataclass(frozen=True)
class Caller:
    """Calls the program and keeps watch over what it prints."""

    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: str | Path) -> Called:
        self.capture.readouterr()
        with _as_a_new_process(words), pytest.raises(SystemExit) as ended:
            app.main()
        said = self.capture.readouterr()
        assert planted.SECRET not in said.out + said.err
        return Called(int(str(ended.value.code)), said.out, said.err)

    def json(self, *words: str | Path) -> Document:
        """The same with --json: one document, its exit code the process's own."""
        called = self(*words, "--json")
        document = called.document
        assert document.exit_code == called.code
        assert json.loads(called.stdout)["format"] == "ddtree-deploy/1"
        return document


def write_inventory(inventory: Inventory, path: Path, **changes: Any) -> Path:
    """A file that loads as `inventory`."""
    data = inventory.model_dump(mode="json", exclude_none=True)
    path.write_text(tomli_w.dumps({**data, **changes}))
    return path
