"""check: from facts to findings, each with its remedy. The facts are recordings, changed in one place per test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from material import FIXTURES

from deployer.checkpoint import profiles
from deployer.errors import PreflightError
from deployer.facts import disk, gpu, host, ports, service
from deployer.facts.finding import Finding, Level, failures
from deployer.facts.gather import Drafter, Facts
from deployer.facts.judge import judge
from deployer.facts.target import Target
from deployer.inventory.load import load

PRODUCTION = load("ct129")
STAGING = load("staging")


def recorded(name: str) -> str:
    return (FIXTURES / name).read_text()


def fit(**changes: Any) -> Facts:
    """A host that is fit for production, but for `changes`."""
    facts = Facts(
        host=host.parse(recorded("host_ct129.txt")),
        root_disk=disk.parse(recorded("disk_overlay.txt")),
        shm=disk.parse(recorded("disk_shm.txt")),
        gpus=gpu.parse(recorded("gpu_a6000_pair_written.txt")),
        port_holder=None,
        service=service.parse(recorded("service_absent.txt")),
        target=Target("qwen3_5", 64, 5120, 248320),
        drafter=Drafter(profiles.load("z-lab/Qwen3.6-27B-DFlash"), 1_730_000_000, 3_460_000_000),
    )
    return replace(facts, **changes)


def finding(facts: Facts, subject: str) -> Finding:
    found = [finding for finding in judge(facts, PRODUCTION) if finding.subject == subject]
    assert len(found) == 1, f"{subject}: {found}"
    return found[0]


def test_a_fit_host_has_only_good_findings() -> None:
    assert {finding.level for finding in judge(fit(), PRODUCTION)} == {Level.OK}


def test_every_finding_that_is_not_good_says_what_to_do() -> None:
    bare = host.parse("os=x\narch=aarch64\nuid=1000\n")
    nothing = fit(
        host=bare, gpus=gpu.Gpus(), target=None, root_disk=disk.Disk("/", 10, 5, 3), shm=disk.Disk("/", 1, 1, 1)
    )
    bad = [finding for finding in judge(nothing, PRODUCTION) if finding.level is not Level.OK]
    assert {finding.subject for finding in failures(bad)} == {
        *("system", "python", "glibc", "systemd", "account", "disk", "inodes", "/dev/shm", "gpu", "target")
    }
    assert all(finding.remedy for finding in bad)


@pytest.mark.parametrize(
    ("change", "subject", "level", "seen", "remedy"),
    [
        ({"venv": False}, "venv", Level.FAIL, "no ensurepip", "python3-venv"),
        ({"python": (3, 9, 2)}, "python", Level.FAIL, "3.9.2", "3.11"),
        ({"glibc": (2, 17)}, "glibc", Level.FAIL, "2.17", "2.28"),
        ({"rsync": False}, "rsync", Level.WARN, "absent", "apt-get install rsync"),
        ({"sudo": False}, "account", Level.FAIL, "sudo refused", "NOPASSWD: ALL"),
        ({"systemd_runs": False}, "systemd", Level.FAIL, "not running", "init"),
    ],
)
def test_the_machine(change: dict[str, Any], subject: str, level: Level, seen: str, remedy: str) -> None:
    found = finding(fit(host=replace(fit().host, **change)), subject)
    assert found.level is level
    assert seen in found.seen
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("change", "subject", "seen", "remedy"),
    [
        ({"driver": "570.86.15", "module": "570.86.15"}, "driver", "570.86.15", "580 or newer"),
        ({"module": "580.65.06"}, "driver match", "kernel module 580.65.06, library 580.95.05", "both equal"),
        ({"nodes": ("/dev/nvidia0",)}, "device nodes", "/dev/nvidia-uvm is missing", "nvidia-modprobe -u"),
    ],
)
def test_the_driver(change: dict[str, Any], subject: str, seen: str, remedy: str) -> None:
    found = finding(fit(gpus=replace(fit().gpus, **change)), subject)
    assert found.level is Level.FAIL
    assert seen in found.seen
    assert remedy in found.remedy


def test_a_driver_that_was_upgraded_under_the_container_is_named_for_what_it_is() -> None:
    found = finding(fit(gpus=gpu.parse(recorded("gpu_mismatch_written.txt"))), "gpu")
    assert found.level is Level.FAIL
    assert "version mismatch" in found.seen
    assert "kernel module 580.65.06" in found.seen
    assert "upgraded under the container" in found.remedy


def test_fewer_or_smaller_cards_are_refused_and_another_model_is_said_aloud() -> None:
    facts = fit(gpus=gpu.parse(recorded("gpu_h200_idle.txt")))
    assert finding(facts, "gpus").level is Level.FAIL
    assert finding(facts, "gpu model").level is Level.WARN
    card = replace(fit().gpus.cards[0], memory_total=24564, memory_free=24000)
    small = fit(gpus=replace(fit().gpus, cards=(card, card)))
    assert finding(small, "gpu memory").seen == "GPU 0: 24.0 GiB, GPU 0: 24.0 GiB"


def test_memory_that_another_holds_is_named_before_anything_loads() -> None:
    card, holder = replace(fit().gpus.cards[0], memory_free=3000), gpu.Holder(812, 45000, "VLLM::Worker")
    facts = fit(gpus=replace(fit().gpus, cards=(card, fit().gpus.cards[1]), holders=(holder,)))
    found = finding(facts, "free gpu memory")
    assert found.level is Level.WARN
    assert "GPU 0: 3000 of 49140 MiB free; held by VLLM::Worker (pid 812)" in found.seen
    assert "--replace" in found.remedy
    ours = replace(facts, service=service.parse(recorded("service_running.txt")))
    assert "free gpu memory" not in {finding.subject for finding in judge(ours, PRODUCTION)}, "we hold it ourselves"


def test_a_port_held_by_a_unit_can_be_replaced_and_one_held_by_a_stray_cannot() -> None:
    unit = ports.parse(recorded("port_held_by_unit.txt"))
    assert unit is not None
    held = finding(fit(port_holder=unit), "port 8000")
    assert held.level is Level.WARN
    assert "--replace mtp-vllm.service" in held.remedy
    assert finding(fit(port_holder=replace(unit, unit=None)), "port 8000").level is Level.FAIL
    assert finding(fit(port_holder=replace(unit, unit="ddtree-vllm.service")), "port 8000").level is Level.OK


def test_a_target_that_the_drafter_was_not_trained_for_is_refused() -> None:
    found = finding(fit(target=Target("qwen3", 48, 5120, 151936)), "target")
    assert found.level is Level.FAIL
    assert "num_hidden_layers is 48, the drafter wants 64" in found.seen
    assert "vocab_size is 151936, the drafter wants 248320" in found.seen


def test_a_bad_checkpoint_is_a_finding_with_its_own_words() -> None:
    failed = replace(fit().drafter, failure=PreflightError("it is truncated", remedy="copy it again"))
    assert finding(fit(drafter=failed), "drafter") == Finding(Level.FAIL, "drafter", "it is truncated", "copy it again")


def test_half_the_room_is_enough_beside_a_release() -> None:
    tight = disk.Disk("/", 1 << 40, 25 << 30, None)
    assert finding(fit(root_disk=tight), "disk").level is Level.FAIL
    deployed = replace(fit().service, current="r1")
    assert finding(fit(root_disk=tight, service=deployed), "disk").level is Level.OK


def test_libnuma_matters_to_the_cpu_build_only() -> None:
    without = fit(host=replace(fit().host, numa=False))
    assert "libnuma" not in {finding.subject for finding in judge(without, PRODUCTION)}
    numa = next(finding for finding in judge(without, STAGING) if finding.subject == "libnuma")
    assert numa.level is Level.FAIL
    assert "libnuma1" in numa.remedy
