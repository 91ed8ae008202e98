"""Every error of the operator's world says what, where and what to do: the rule, held against the code itself."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from material import REPOSITORY

from deployer.errors import DeployError, Exit
from deployer.push.failure import WriteError
from deployer.transport.base import Result
from deployer.transport.faults import LineBroken
from deployer.transport.hostkeys import HostKeyError
from deployer.transport.shell import CommandError

FILES = sorted(path for path in (REPOSITORY / "deployer").rglob("*.py") if path.name != "__main__.py")


for file in FILES:  # a family is known when all of its members are loaded
    importlib.import_module(".".join(file.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"))


def family(kind: type[DeployError] = DeployError) -> Iterator[type[DeployError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from family(child)


# Those with a constructor of their own are called with other words: it is theirs to say both.
NAMES = {kind.__name__ for kind in family() if kind is DeployError or "__init__" not in vars(kind)} | {"kind"}


def made(tree: ast.AST) -> Iterator[ast.Call]:
    """Every call that makes an error: by its class, by a variable `kind`, or from a table."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        from_table = isinstance(function, ast.Call) and ast.unparse(function).startswith("FAILURES.get")
        if name in NAMES or from_table:
            yield node


def lacking(path: Path) -> list[str]:
    found = []
    for call in made(ast.parse(path.read_text())):
        given = {word.arg: word.value for word in call.keywords}
        for word in ("where", "remedy"):
            value = given.get(word)
            if value is None or (isinstance(value, ast.Constant) and not value.value):
                found.append(f"{path.relative_to(REPOSITORY)}:{call.lineno}: no {word}: {ast.unparse(call)[:100]}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPOSITORY / "deployer")))
def test_every_error_that_the_code_makes_names_a_place_and_a_remedy(path: Path) -> None:
    assert lacking(path) == []


def test_the_rule_sees_what_it_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "REPOSITORY", tmp_path)
    bad = tmp_path / "bad.py"
    bad.write_text('raise UsageError("x", where="y")\nraise errors.GateError("x", where="", remedy=z)\n')
    assert [line.split(": ")[1] for line in lacking(bad)] == ["no remedy", "no where"]
    assert sum(len(list(made(ast.parse(path.read_text())))) for path in FILES) > 80


def test_the_family_is_known_and_each_has_a_code_of_its_own_meaning() -> None:
    assert {LineBroken, WriteError, HostKeyError} <= set(family())
    assert all(kind.exit_code is not Exit.OK for kind in family())
    own = [kind for kind in family() if kind is not DeployError and "__init__" in vars(kind)]
    assert {kind.__name__ for kind in own} == {"CommandError"}
    failed = CommandError("box", Result("false", 1, "", ""))
    assert failed.where
    assert failed.remedy
