"""Exit codes: one table for people, one in the code, and the code that speaks for several hosts."""

from __future__ import annotations

import re

import pytest
from material import REPOSITORY

from deployer.errors import MEANINGS, SEVERITY, DeployError, Exit, worst

PAGE = (REPOSITORY / "docs/exit-codes.md").read_text()


def test_the_page_and_the_code_say_the_same() -> None:
    rows = re.findall(r"^\| (\d+) \| (\S+) \| (.+) \|$", PAGE, re.M)
    assert rows == [(str(int(code)), code.label, MEANINGS[code]) for code in Exit]
    order = re.search(r"^(\d+(?:, \d+)+)\.$", PAGE, re.M)
    assert order is not None
    assert order[1] == ", ".join(str(int(code)) for code in SEVERITY)


def test_the_codes_are_those_that_scripts_rely_on() -> None:
    assert {code.name: int(code) for code in Exit} == {
        "OK": 0,
        "UNEXPECTED": 1,
        "USAGE": 2,
        "PREFLIGHT": 3,
        "TRANSFER": 4,
        "INSTALL": 5,
        "GATE_FAILED": 6,
        "ROLLBACK_FAILED": 7,
        "LOCKED": 8,
        "BENCH_REGRESSION": 9,
        "INTERRUPTED": 130,
    }
    readme = (REPOSITORY / "README.md").read_text()
    for code in set(Exit) - {Exit.OK, Exit.UNEXPECTED, Exit.GATE_FAILED}:
        assert re.search(rf"\b{int(code)} {code.label.replace('-', ' ')}", readme), code


def kinds(parent: type[DeployError]) -> list[type[DeployError]]:
    return [parent, *(kind for child in parent.__subclasses__() for kind in kinds(child))]


def test_every_kind_of_error_leads_to_a_code_of_the_table_that_is_no_success() -> None:
    import deployer.cli.app  # noqa: F401  (defines all of them)

    assert len(kinds(DeployError)) > 8
    for kind in kinds(DeployError):
        assert kind.exit_code in set(Exit) - {Exit.OK}, kind


def test_severity_orders_every_code_once() -> None:
    assert sorted(SEVERITY) == sorted(Exit)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], Exit.OK),
        ([Exit.OK, Exit.OK], Exit.OK),
        ([Exit.OK, Exit.LOCKED], Exit.LOCKED),
        ([Exit.GATE_FAILED, Exit.ROLLBACK_FAILED, Exit.BENCH_REGRESSION], Exit.ROLLBACK_FAILED),
        ([Exit.INTERRUPTED, Exit.GATE_FAILED], Exit.GATE_FAILED),
        ([Exit.USAGE, Exit.TRANSFER], Exit.TRANSFER),
    ],
)
def test_the_worst_speaks_for_all(codes: list[Exit], expected: Exit) -> None:
    assert worst(codes) == expected
