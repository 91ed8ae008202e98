"""What keeps a healthy service from being touched: judged on recorded answers of nvidia-smi."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployer.errors import PreflightError, TransferError
from deployer.facts import gpu
from deployer.facts.gpu import Gpus
from deployer.serve.preflight import gpus_are_ready, held_only_by, options_are_vllms
from deployer.transport.base import SILENCE, Result
from deployer.transport.local import LocalTransport

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> Gpus:
    return gpu.parse((RECORDED / f"gpu_{name}.txt").read_text())


def refusal(gpus: Gpus, replace: str | None = None) -> str:
    with pytest.raises(PreflightError) as raised:
        gpus_are_ready(gpus, False, replace, "ct129")
    return f"{raised.value.what} | {raised.value.remedy}"


def test_vllms_parser_may_be_silent_as_long_as_anybody() -> None:
    class Waiting(LocalTransport):
        def run(self, command: str, **options: Any) -> Result:
            raise TransferError(f"no result within {options['timeout']:g} s", where="box", remedy="try by hand")

    with pytest.raises(TransferError, match=f"no result within {SILENCE:g} s"):
        options_are_vllms(Waiting(), "/venv/bin/python", "/config.yaml")


def test_idle_cards_are_ready() -> None:
    gpus_are_ready(recorded("a6000_pair_idle"), False, None, "ct129")


def test_a_held_card_names_its_holder_and_the_unit_to_replace() -> None:
    held = recorded("a6000_pair_held_by_unit")
    said = refusal(held)
    assert "is held by" in said
    assert ".service" in said
    assert "--replace" in said
    gpus_are_ready(held, False, "its.service", "ct129")
    gpus_are_ready(held, True, None, "ct129")  # our own service holds them


def test_a_new_library_over_an_old_module_names_both() -> None:
    mismatch = recorded("version_mismatch")
    said = refusal(mismatch, replace="its.service")
    assert mismatch.module is not None
    assert mismatch.module in said
    assert str(mismatch.library) in said
    assert "None" not in said


@pytest.mark.parametrize("name", ["a6000_requires_reset", "fell_off_the_bus", "cgroup_lost"])
def test_a_card_that_does_not_answer_is_not_taken_for_a_free_one(name: str) -> None:
    assert "nothing was stopped" in refusal(recorded(name))


def test_gpus_held_by_the_unit_that_the_switch_stops_are_not_somebody_elses() -> None:
    held = recorded("a6000_pair_held_by_unit")
    [unit] = {holder.unit for holder in held.holders}
    assert unit is not None
    assert held_only_by(held, frozenset({unit, "ddtree-vllm.service"}))
    assert not held_only_by(held, frozenset({"ddtree-vllm.service"}))
    assert not held_only_by(recorded("a6000_pair_idle"), frozenset({unit}))
