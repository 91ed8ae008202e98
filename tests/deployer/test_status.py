"""`status`: what it says of a service, judged on a host that is a stand-in and on recorded answers of nvidia-smi."""

from __future__ import annotations

import json

import pytest
from material import recorded
from serving import Host, Machine, applied, inventory

from deployer.facts import gpu
from deployer.serve import metrics, plan
from deployer.serve.gate import Clock
from deployer.serve.status import duration, memory, status, throughput

ENTRY = {"when": "2026-11-30T12:00:00+00:00", "who": "ann@laptop", "verb": "up", "steps": [], "outcome": "ok"}


def rows(host: Host) -> dict[str, str]:
    time = iter((10.0, 13.0, 20.0))
    return dict(status(inventory(), host, Clock(lambda: next(time), lambda _: None)))


def test_a_service_that_runs_shows_release_model_acceptance_speed_and_who_deployed_it(
    host: Host, machine: Machine
) -> None:
    applied(plan.plan(inventory(), host))
    machine.audit = json.dumps({**ENTRY, "exit_code": 0}) + "\n"
    seen = rows(host)
    assert seen["release"] == "r1"
    assert seen["models"] == "tiny"
    assert seen["acceptance length"] == "5.00"
    assert seen["throughput"] == "30.0 generated and 0.0 prompt tokens/s over 3.0 s; requests: 2 running, 0 waiting"
    assert seen["last change"] == "up by ann@laptop, 2026-11-30T12:00:00+00:00: ok"
    assert "tree, budget 15, release r1, by " in seen["deployment"]


def test_a_stopped_one_is_not_asked(host: Host) -> None:
    seen = rows(host)
    assert seen["unit"] == "ddtree-vllm.service: inactive (dead)"
    assert seen["last change"] == "none is on record"
    assert not {"health", "throughput", "acceptance length"} & seen.keys()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7200, "2 h 0 min"), (93784, "1 d 2 h"), (86400, "1 d 0 h")],
)
def test_a_duration_is_its_two_largest_units(seconds: int, said: str) -> None:
    assert duration(seconds) == said


def test_speed_is_what_was_counted_in_the_window() -> None:
    before = metrics.parse("vllm:generation_tokens_total 100\nvllm:prompt_tokens_total 10\n")
    now = metrics.parse("vllm:generation_tokens_total 250\nvllm:prompt_tokens_total 40\nvllm:num_requests_waiting 3\n")
    said = throughput(now.since(before), now, 2.0)
    assert said == "75.0 generated and 15.0 prompt tokens/s over 2.0 s; requests: 0 running, 3 waiting"


def test_each_cards_memory_and_what_nvidia_smi_says_in_its_place() -> None:
    pair = dict(memory(gpu.parse(recorded("gpu_a6000_pair_held_by_unit.txt"))))
    assert set(pair) == {"GPU 0", "GPU 1"}
    assert "of 48.0 GiB used" in pair["GPU 0"]
    assert "RTX A6000" in pair["GPU 0"]
    lost = dict(memory(gpu.parse(recorded("gpu_version_mismatch.txt"))))
    assert "mismatch" in lost["GPUs"]
    assert "reset" in str(dict(memory(gpu.parse(recorded("gpu_a6000_requires_reset.txt"))))).lower()
