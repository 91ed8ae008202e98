"""Pages that are made from the code, or have to say everything that is in it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from material import REPOSITORY

from deployer.bench.model import BenchFile, schema
from deployer.bench.prompts import BUNDLED
from deployer.cli.app import app
from deployer.errors import Exit

MAKE = "-m typer deployer.cli.app utils docs --name ddtree-deploy --title Verbs"


def test_the_page_of_verbs_is_what_the_help_says() -> None:
    made = subprocess.run(
        [sys.executable, *MAKE.split()], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=120
    )
    page = (REPOSITORY / "docs/verbs.md").read_text()
    assert page.strip() == made.stdout.strip(), f"the help has changed: build/venv/bin/python {MAKE} >docs/verbs.md"


def commands(page: str) -> list[str]:
    """Every call of the program in a page's code spans and code blocks, without its comment."""
    text = (REPOSITORY / page).read_text()
    found = re.findall(r"`(ddtree-deploy [^`]+)`", text) + re.findall(r"(?m)^(ddtree-deploy .+)$", text)
    return [command.partition("  ")[0].partition(" #")[0].partition(" |")[0].rstrip() for command in found]


PAGES = ("README.md", "docs/runbook.md", "docs/json.md", "docs/bench.md", "docs/tune.md", "docs/fleet.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_a_page_names_is_one_that_the_program_takes(page: str) -> None:
    found = commands(page)
    assert found
    for command in found:
        rest = [word for word in shlex.split(command)[1:] if word != "--local"]
        verb: Any = typer.main.get_command(app)
        while hasattr(verb, "commands"):
            if verb.name == "bench" and rest[0] not in verb.commands:
                rest = ["run", *rest]  # its short form
            assert rest[0] in verb.commands, command
            verb = verb.commands[rest.pop(0)]
        verb.make_context(command, rest)  # what it does not know is an error of the command line


def test_the_runbook_says_what_to_do_on_each_exit_code() -> None:
    rows = re.findall(r"(?m)^\| (\d+) \|", (REPOSITORY / "docs/runbook.md").read_text())
    assert [int(row) for row in rows] == [int(code) for code in Exit]


@pytest.mark.parametrize("page", sorted((REPOSITORY / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        assert "://" in link or (page.parent / link).exists(), link


def test_the_page_of_the_bench_names_every_part_and_its_schema_is_the_models() -> None:
    assert json.loads((REPOSITORY / "docs/bench.schema.json").read_text()) == schema(), (
        "the bench's format has changed: within format 1 keys may only be added; then write docs/bench.schema.json anew:\n"
        "python -c 'import json; from deployer.bench.model import schema; print(json.dumps(schema(), indent=1))'"
    )
    page = (REPOSITORY / "docs/bench.md").read_text()
    for part in BenchFile.model_fields:
        assert f"`{part}`" in page, f"docs/bench.md says nothing of {part}"
    for name in ("mixed", *BUNDLED):
        assert f"`{name}`" in page, f"docs/bench.md says nothing of the prompt set {name}"


def test_every_folder_of_the_program_is_in_its_package() -> None:
    listed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {
        ".".join(found.parent.relative_to(REPOSITORY).parts) for found in REPOSITORY.glob("deployer/**/__init__.py")
    }
    assert set(listed) == there
