"""The pages of the verbs, made from the help, the inventory's schema, the document's schema and the exit codes:
`python -m deployer.cli.pages docs` writes docs/verbs.md and docs/verbs/.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

from deployer.cli.about import FILLS, PARTS, READS, codes, verbs
from deployer.cli.app import app
from deployer.cli.document import Document
from deployer.errors import MEANINGS, Exit
from deployer.fleet.inventory import Router
from deployer.inventory.model import Inventory, Section
from deployer.inventory.tables import Key, Table, tables

PROGRAM = "ddtree-deploy"
_FILES: dict[type[Section], tuple[str, str]] = {
    Inventory: ("The host's file", "`inventory/HOST.toml`"),
    Router: ("A router's file", "`inventory/routers/ROUTER.toml`"),
}


def pages() -> dict[str, str]:
    """Every page by its path within docs/."""
    root: Any = typer.main.get_command(app)
    found = {word: tuple(names) for word, names in groupby(verbs(), lambda name: name.split()[0])}
    made = {f"verbs/{word}.md": _page(root.commands[word], word, names) for word, names in found.items()}
    return {"verbs.md": _index(root, found), **made}


def _help(command: Any, name: str) -> str:
    return get_docs_for_click(obj=command, ctx=typer.Context(command), name=name).strip()


def _index(root: Any, found: Iterable[str]) -> str:
    before, _, _ = _help(root, PROGRAM).partition("**Commands**")
    rows = [(f"[`{word}`](verbs/{word}.md)", _first(root.commands[word].help)) for word in found]
    return f"""\
{before.replace(f"`{PROGRAM}`", "Verbs", 1).strip()}

The options above stand before the verb. Each verb's page has its help with examples, its exit codes, what it fills in with
`--json`, and the keys of the inventory that matter to it. `{PROGRAM} VERB --help` prints the first of these.

{_table(("verb", "what it does"), rows)}

The program runs from a checkout, which has to be whole: where a file of it is missing, any verb may end with
exit code {int(Exit.INSTALL)}. These pages are made from the code, by `python -m deployer.cli.pages docs`.
"""


def _first(told: str) -> str:
    """The help's first paragraph."""
    return " ".join(told.partition("\n\n")[0].split())


def _page(command: Any, word: str, names: Sequence[str]) -> str:
    parts = (_help(command, f"{PROGRAM} {word}"), _exits(names), _document(names), *_inventory(names))
    return "\n\n".join(parts) + "\n\n[All verbs](../verbs.md)\n"


def _exits(names: Sequence[str]) -> str:
    """Which of them end so is said where a page has several verbs that differ."""
    ways = {code: [name for name in names if code in codes(name)] for code in Exit}
    rows = [
        (str(int(code)), code.label, MEANINGS[code] + ("" if len(ends) == len(names) else f" ({_names(ends)})"))
        for code, ends in ways.items()
        if ends
    ]
    return (
        f"## Exit codes\n\n{_table(('code', 'name', 'meaning'), rows)}\n\nMore on them: [exit codes](../exit-codes.md)."
    )


def _document(names: Sequence[str]) -> str:
    """What --json has of them beside what every document has."""
    rows = []
    for part in PARTS:
        filling = [name for name in names if part in FILLS[name]]
        what = Document.model_fields[part].description or ""
        if filling:
            rows.append((f"`{part}`", what + ("" if len(filling) == len(names) else f" ({_names(filling)})")))
    return f"## With `--json`\n\nBeside what [every document](../json.md) has:\n\n{_table(('part', 'what'), rows)}"


def _inventory(names: Sequence[str]) -> Iterable[str]:
    """The tables that matter to any of them."""
    read = {
        model: [table for table in tables(model) if any(table.first in READS[name].get(model, ()) for name in names)]
        for model in _FILES
    }
    yield "## Inventory"
    if not any(read.values()):
        yield "It reads no inventory."
        return
    yield "A file is read as a whole, and a key that is unknown or wrong anywhere in it is an error. What matters here:"
    shown: dict[tuple[Key, ...], str] = {}
    for model, found in read.items():
        if found:
            title, path = _FILES[model]
            yield f"### {title}, {path}"
            yield from (_keys(table, shown) for table in found)


def _keys(table: Table, shown: dict[tuple[Key, ...], str]) -> str:
    """A table with its keys, or the name of the one above that has the same."""
    name = f"`[{table.name}]`" if table.name else "Before the first table"
    said = f"**{name}** {table.meaning}" if table.name else f"**{name}**"
    if table.keys in shown:
        return f"{said} Its keys are those of {shown[table.keys]} above."
    shown[table.keys] = name
    rows = [(f"`{key.name}`", key.kind, _default(key), key.meaning) for key in table.keys]
    return f"{said}\n\n{_table(('key', 'kind', 'default', 'meaning'), rows)}"


def _default(key: Key) -> str:
    if key.default is None:
        return "needed"
    return f"`{key.default}`" if key.default else ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main(docs: Path) -> None:
    """Writes them; a page whose verb has gone goes, too."""
    made = pages()
    (docs / "verbs").mkdir(parents=True, exist_ok=True)
    for page, text in made.items():
        (docs / page).write_text(text, encoding="utf-8")
    for there in (docs / "verbs").glob("*.md"):
        if f"verbs/{there.name}" not in made:
            there.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
