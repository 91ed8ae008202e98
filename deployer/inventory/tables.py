"""What a file of the inventory may say, as tables for people: each key's kind, default and meaning, from the model's schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deployer.inventory.model import Section

Shape = Mapping[str, Any]
_KINDS = {"string": "text", "boolean": "true or false", "object": "table"}
FREE = "NAME"  # stands for a key that the file's author chooses


@dataclass(frozen=True)
class Key:
    """One key. `default` is TOML, empty for what may be left out and is nothing then; None if the key is needed."""

    name: str
    kind: str
    default: str | None
    meaning: str


@dataclass(frozen=True)
class Table:
    """One table. `name` has the tables it lies in before it, with dots; it is empty for the top of the file."""

    name: str
    meaning: str
    keys: tuple[Key, ...]

    @property
    def first(self) -> str:
        """The table of the file's top level that it is, or lies in."""
        return self.name.partition(".")[0]


def tables(model: type[Section]) -> tuple[Table, ...]:
    """Every table of a file, in the order of the model, each before those that lie in it."""
    schema = model.model_json_schema()
    return tuple(_walk("", schema, schema["$defs"]))


def _walk(name: str, section: Shape, definitions: Mapping[str, Shape]) -> Iterator[Table]:
    needed = section.get("required", ())
    within = {key: found for key, shape in section["properties"].items() if (found := _table(key, shape))}
    yield Table(
        name,
        " ".join(section["description"].split()),
        tuple(
            Key(key, _kind(shape), None if key in needed else _default(shape), shape.get("description", ""))
            for key, shape in section["properties"].items()
            if name or key not in within  # the top's tables are said by their own headings
        ),
    )
    for inner, definition in within.values():
        yield from _walk(f"{name}.{inner}".lstrip("."), definitions[definition], definitions)


def _table(key: str, shape: Shape) -> tuple[str, str] | None:
    """The name and the definition of the table that a key is, or whose names are free; None for a value."""
    for one in shape.get("anyOf", [shape]):
        if "$ref" in one:
            return key, one["$ref"].rpartition("/")[2]
        inner = one.get("additionalProperties")
        if isinstance(inner, dict) and "$ref" in inner:
            return f"{key}.{FREE}", inner["$ref"].rpartition("/")[2]
    return None


def _kind(shape: Shape) -> str:
    if "anyOf" in shape:
        return " or ".join(_kind(one) for one in shape["anyOf"] if one.get("type") != "null")
    if "enum" in shape:
        return " or ".join(json.dumps(value) for value in shape["enum"])
    if shape.get("format") == "path":
        return "path on the laptop"
    if "prefixItems" in shape:
        return f"[{', '.join(_kind(one) for one in shape['prefixItems'])}]"
    if shape.get("type") == "array":
        return f"list: {_kind(shape['items'])}"
    kind = shape.get("type", "object")
    return f"{_KINDS.get(kind, kind)}{_range(shape)}"


def _range(shape: Shape) -> str:
    low, high, above = (shape.get(key) for key in ("minimum", "maximum", "exclusiveMinimum"))
    if above is not None:
        return f" above {above:g}"
    if low is not None and high is not None:
        return f", {low:d} to {high:d}"
    return f", at least {low:g}" if low is not None else ""


def _default(shape: Shape) -> str:
    default = shape.get("default")
    return "" if default in (None, "", [], {}) else json.dumps(default)
