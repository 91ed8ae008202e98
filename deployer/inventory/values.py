"""Kinds of values in inventory files. Nothing is converted: true is no 1, "8000" is no port."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, AllowInfNan, Strict

Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]  # or a whole one; finite, as the sections say
Switch = Annotated[bool, Strict()]


def _version(value: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)*", value):
        raise ValueError("a version is numbers with dots between them, as in 580 or 580.65.06")
    return value


def _program(value: str) -> str:
    if not re.fullmatch(r"(/(\.?[A-Za-z0-9_+@=:,-][A-Za-z0-9_.+@=:,-]*/)*)?[A-Za-z0-9_][A-Za-z0-9_.+-]*", value):
        raise ValueError("it is one program, without arguments: a name on the host's PATH, or an absolute path there")
    return value


def require_sayable(options: Mapping[str, object]) -> None:
    """ValueError that names an option which no program takes, however deep it lies: options are handed on as JSON."""
    for name, value in options.items():
        try:
            json.dumps(value, allow_nan=False)
        except (ValueError, TypeError):
            raise ValueError(f"options.{name} has a value that cannot be handed on: inf, nan or a date") from None


Version = Annotated[str, AfterValidator(_version)]
Program = Annotated[str, AfterValidator(_program)]
# Its numbers are looked at by `require_sayable`: a union would say what is wrong with each of its members.
OptionValue = str | int | Annotated[float, AllowInfNan(True)] | bool | list[str] | dict[str, object]
