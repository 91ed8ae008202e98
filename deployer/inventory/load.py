"""Finds and reads inventory files; every mistake in one is named with its file, its key and what was probably meant."""

from __future__ import annotations

import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from deployer.errors import UsageError
from deployer.inventory.model import Inventory

BUNDLED = Path(__file__).parents[2] / "inventory"
FOLDER_VARIABLE = "DDTREE_INVENTORY"
TUNED = ".tuned.toml"  # beside an inventory, which names it: no host of its own
Model = TypeVar("Model", bound=BaseModel)


def folders() -> tuple[Path, ...]:
    """Where NAME.toml is looked for, first match wins: ./inventory, $DDTREE_INVENTORY, the one beside the package."""
    named = os.environ.get(FOLDER_VARIABLE)
    candidates = [Path.cwd() / "inventory", *([Path(named).expanduser()] if named else []), BUNDLED]
    return tuple(dict.fromkeys(folder.resolve() for folder in candidates if folder.is_dir()))


def names() -> dict[str, Path]:
    """Every inventory that a bare name reaches, with its file."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob("*.toml")):
            if not path.name.endswith(TUNED):
                found.setdefault(path.stem, path)
    return found


def find(name_or_path: str) -> Path:
    """The file that `name_or_path` means. Raises UsageError with the nearest names when there is none."""
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        path = Path(name_or_path).expanduser()
        if path.is_file():
            return path.resolve()
        raise UsageError(
            "no such inventory file", where=str(path), remedy="give an existing .toml file or a host's name"
        )
    known = names()
    if name_or_path in known:
        return known[name_or_path]
    near = get_close_matches(name_or_path, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known hosts: {', '.join(known) or 'none'}"
    looked = ", ".join(str(folder) for folder in folders()) or "no inventory folder exists"
    raise UsageError(f"no inventory is named {name_or_path!r}", where=looked, remedy=hint)


def load(name_or_path: str) -> Inventory:
    """The inventory of a host, by name or by its file's path, with every laptop path made absolute."""
    return validated(Inventory, find(name_or_path))


def validated(model: type[Model], path: Path) -> Model:
    """A file as what it has to be, with every laptop path made absolute."""
    return _parsed(model, _text(path), path)


def parse(text: str, path: Path) -> Inventory:
    """The inventory that a file's text is; `path` is where it is or will be."""
    return _parsed(Inventory, text, path)


def _parsed(model: type[Model], text: str, path: Path) -> Model:
    try:
        return model.model_validate(_toml(text, path), context={"folder": path.parent})
    except ValidationError as error:
        raise _explained(error, path, model) from error


def members(group: str) -> tuple[str, ...]:
    """The hosts whose files name `group`, sorted. UsageError if there is none, or if a file cannot be read: who is
    left out would not be known.
    """
    groups = {name: _groups(path) for name, path in names().items()}
    found = tuple(sorted(name for name, own in groups.items() if group in own))
    if not found:
        known = sorted({own for several in groups.values() for own in several})
        near = get_close_matches(group, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known groups: {', '.join(known) or 'none'}"
        looked = ", ".join(map(str, folders())) or "no inventory folder exists"
        remedy = f'{hint}; a host\'s file says groups = ["{group}"]'
        raise UsageError(f"no host is in group {group!r}", where=looked, remedy=remedy)
    return found


def _groups(path: Path) -> frozenset[str]:
    own = _toml(_text(path), path).get("groups", ())
    return frozenset(map(str, own)) if isinstance(own, list) else frozenset()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        what = f"the file cannot be read: {error.strerror}"
        raise UsageError(what, where=str(path), remedy="see its owner and mode (ls -l)") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"it is not text: {error}", where=str(path), remedy="write the file in UTF-8") from error


def _toml(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not valid TOML: {error}", where=str(path), remedy="mend the file at that line") from error
    except RecursionError:
        what = "brackets lie in brackets deeper than any such file needs"
        raise UsageError(what, where=str(path), remedy="mend the file") from None


def _explained(error: ValidationError, path: Path, model: type[BaseModel]) -> UsageError:
    details = error.errors()
    deeper = {detail["loc"][:depth] for detail in details for depth in range(1, len(detail["loc"]))}
    # A list is wrong by what is wrong in it: that alone is said.
    told = [detail for detail in details if detail["loc"] not in deeper]
    problems = [_problem(detail["loc"], detail["type"], detail["msg"], model) for detail in told]
    first = problems[0][0] if len(problems) == 1 else "; ".join(what for what, _ in problems)
    remedies = dict.fromkeys(remedy for _, remedy in problems)
    return UsageError(first, where=str(path), remedy="; ".join(remedies))


def _problem(location: tuple[int | str, ...], kind: str, message: str, model: type[BaseModel]) -> tuple[str, str]:
    """What is wrong with one key, and what to do about it."""
    key = ".".join(str(part) for part in location)
    if kind == "extra_forbidden":
        known = list(_section_of(location[:-1], model).model_fields)
        near = get_close_matches(str(location[-1]), known, n=1)
        return f"unknown key {key}", f"did you mean {near[0]}?" if near else f"known keys there: {', '.join(known)}"
    if kind == "missing":
        return f"key {key} is missing", f"add {key}"
    said = message.removeprefix("Value error, ")
    if not key:  # what several keys say together
        return said, "make its keys agree"
    return f"{key}: {said}", f"correct {key}"


def _section_of(location: tuple[int | str, ...], model: type[BaseModel]) -> type[BaseModel]:
    """The class that a location in the file belongs to."""
    section: type[BaseModel] = model
    annotation: Any = section
    for part in location:
        # A table with free keys leads to what its values are.
        table = get_origin(annotation) is dict
        annotation = get_args(annotation)[1] if table else annotation.model_fields[str(part)].annotation
    section = annotation
    return section
