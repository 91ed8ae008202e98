"""Pages that are made from the code, or have to say everything that is in it."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from material import REPOSITORY

from deployer.bench.model import BenchFile, schema
from deployer.bench.prompts import BUNDLED
from deployer.cli.about import FILLS, PARTS, READS, codes, verbs
from deployer.cli.app import app
from deployer.cli.document import Document
from deployer.cli.pages import pages
from deployer.errors import Exit
from deployer.fleet.inventory import Router
from deployer.inventory.model import Inventory, Section
from deployer.inventory.tables import tables

VERB_PAGES = {f"docs/{page}": text for page, text in pages().items() if page.startswith("verbs/")}


def test_the_pages_of_the_verbs_are_what_the_code_makes_now() -> None:
    docs = REPOSITORY / "docs"
    there = {f"verbs/{page.name}" for page in (docs / "verbs").glob("*")} | {"verbs.md"}
    made = pages()
    stale = [page for page, text in made.items() if page not in there or (docs / page).read_text() != text]
    assert (stale, there - made.keys()) == ([], set()), "build/venv/bin/python -m deployer.cli.pages docs"


def test_every_verb_has_its_page_with_an_example_of_it() -> None:
    for verb in verbs():
        page = VERB_PAGES[f"docs/verbs/{verb.split()[0]}.md"]
        assert f"# `ddtree-deploy {verb}`" in page
        called = {"bench run": "bench ct129"}.get(verb, verb)
        assert re.search(rf"(?m)^    ddtree-deploy {called}\b", page), verb


def test_it_is_said_of_every_verb_what_it_reads_fills_and_ends_with() -> None:
    assert READS.keys() == FILLS.keys() == verbs().keys()
    assert {code for verb in verbs() for code in codes(verb)} == set(Exit)
    assert {part for filled in FILLS.values() for part in filled} == set(PARTS)
    for part in PARTS:
        assert Document.model_fields[part].description, f"the schema says nothing of {part}"
    rows = dict(re.findall(r"(?m)^\| `([a-z ]+)` \| (.+) \| (?:yes|changes nothing) \|$", page_of("docs/json.md")))
    for verb, filled in FILLS.items():
        said = rows[verb].partition("its `verb`")[0]
        assert set(re.findall(r"`(\w+)`", said)) == set(filled), f"docs/json.md on {verb}"


def test_what_changes_a_host_takes_its_lock_and_tells_whom_the_inventory_names() -> None:
    for verb, command in verbs().items():
        changes = any("--plan" in parameter.opts for parameter in command.params) and verb != "init"
        told = any("notify" in found for found in READS[verb].values())
        assert (Exit.LOCKED in codes(verb)) == changes, verb
        assert told == (changes or verb in ("inventory show", "inventory validate")), verb


@pytest.mark.parametrize("model", [Inventory, Router])
def test_every_key_of_an_inventory_is_on_the_page_of_a_verb_that_reads_it_with_its_meaning(
    model: type[Section],
) -> None:
    read = {table for found in READS.values() for table in found.get(model, ())}
    assert read == {table.first for table in tables(model)}
    for table in tables(model):
        assert table.meaning
        for key in table.keys:
            assert key.meaning, f"the model says nothing of {table.name}.{key.name}"
            row = f"| `{key.name}` | {key.kind} | "
            assert any(row in text for text in VERB_PAGES.values()), f"{table.name}.{key.name}"


def test_a_key_is_shown_with_its_kind_its_bounds_and_its_default() -> None:
    found = {(table.name, key.name): (key.kind, key.default) for table in tables(Inventory) for key in table.keys}
    assert found["ssh", "host"] == ("text", None)
    assert found["ssh", "port"] == ("integer, 1 to 65535", "")
    assert found["serve", "gate_timeout"] == ("number above 0", "1200.0")
    assert found["install", "build"] == ('"cpu" or "cuda"', None)
    assert found["install", "local_packages"] == ("list: path on the laptop", "")
    assert found["bench", "concurrency"] == ("list: integer, at least 1", "[1]")
    assert found["tree", "enabled"] == ("true or false", "true")
    assert found["drafter", "hub"] == ("table", "")
    assert {"drafter.hub.token", "serve.secrets.NAME"} <= {table for table, _ in found}


def page_of(page: str) -> str:
    return (REPOSITORY / page).read_text()


def commands(page: str) -> list[str]:
    """Every call of the program in a page's code spans and code blocks, without its comment; no headings."""
    text = re.sub(r"(?m)^#.*$", "", page_of(page))
    found = re.findall(r"`(ddtree-deploy [^`]+)`", text) + re.findall(r"(?m)^ {0,4}(ddtree-deploy .+)$", text)
    return [command.partition("  ")[0].partition(" #")[0].partition(" |")[0].rstrip() for command in found]


PAGES = ("README.md", "docs/runbook.md", "docs/json.md", "docs/bench.md", "docs/tune.md", "docs/fleet.md")


@pytest.mark.parametrize("page", [*PAGES, *VERB_PAGES])
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


@pytest.mark.parametrize("page", sorted((REPOSITORY / "docs").rglob("*.md")), ids=lambda page: page.name)
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
