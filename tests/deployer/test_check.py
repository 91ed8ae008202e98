"""check: from facts to findings, each with its remedy. The facts are recordings, changed in one place per test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fit import PRODUCTION, STAGING, disks, finding, fit, subjects
from material import recorded

from deployer.errors import PreflightError
from deployer.facts import confinement, disk, gpu, host, ports
from deployer.facts.finding import Finding, Level, failures
from deployer.facts.gather import read_drafter
from deployer.facts.judge import judge
from deployer.facts.target import Target
from deployer.inventory.model import Drafter, Hub


def test_a_fit_host_has_only_good_findings() -> None:
    assert {finding.level for finding in judge(fit(), PRODUCTION)} == {Level.OK}


def test_every_finding_that_is_not_good_says_what_to_do() -> None:
    bare = host.parse("os=x\narch=aarch64\nuid=1000\n")
    full = disk.Disk("/", 10, 5, 3)
    nothing = fit(host=bare, gpus=gpu.Gpus(), confinement=None, target=None, room=disks(full, shm=full), skew=-90000.0)
    bad = [finding for finding in judge(nothing, PRODUCTION) if finding.level is not Level.OK]
    assert {finding.subject for finding in failures(bad)} == {
        *("system", "python", "glibc", "systemd", "account", "compiler", "clock", "disk", "inodes", "/dev/shm", "gpu"),
        "target",
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


@pytest.mark.parametrize(
    ("change", "seen", "remedy"),
    [
        ({"compiler": ""}, "neither gcc nor clang", "apt-get install gcc libc6-dev python3-dev"),
        ({"headers": False}, "/usr/bin/gcc, Python.h absent", "python3-dev"),
        ({"miscompiled": "fatal error: stdlib.h"}, "/usr/bin/gcc fails: fatal error: stdlib.h", "libc6-dev"),
    ],
)
def test_triton_needs_a_compiler_and_headers_on_a_gpu_host(change: dict[str, Any], seen: str, remedy: str) -> None:
    facts = fit(host=replace(fit().host, **change))
    found = finding(facts, "compiler")
    assert found.level is Level.FAIL
    assert seen in found.seen
    assert remedy in found.remedy
    assert "compiler" not in subjects(facts, STAGING), "interpreted kernels are not compiled"


@pytest.mark.parametrize(
    ("skew", "level", "seen"),
    [
        (0.3, Level.OK, "equal to this machine's within a second"),
        (-12.0, Level.OK, "12 s behind this machine's"),
        (95.0, Level.WARN, "95 s ahead of this machine's"),
        (-90_000.0, Level.FAIL, "90000 s behind this machine's"),
    ],
)
def test_clocks_apart(skew: float, level: Level, seen: str) -> None:
    found = finding(fit(skew=skew), "clock")
    assert (found.level, found.seen) == (level, seen)
    if level is not Level.OK:
        assert "on the Proxmox host, whose clock a container has: timedatectl set-ntp true" in found.remedy


def test_a_clock_that_nobody_keeps_is_said() -> None:
    free = replace(fit().host, synchronised=False)
    assert finding(fit(host=free, skew=2.0), "clock").seen == "2 s ahead of this machine's, not synchronised"
    assert "clock" not in subjects(fit(skew=None))


@pytest.mark.parametrize(
    ("name", "subject", "level", "seen", "remedy"),
    [
        ("no_nesting", "unit namespaces", Level.WARN, "226/NAMESPACE", "pct set ID --features nesting=1"),
        ("no_nesting", "unit namespaces", Level.WARN, "the service starts without ProtectSystem, ", "confined less"),
        ("memlock_refused", "ulimits", Level.FAIL, "205/LIMITS", "lxc.prlimit.memlock: unlimited"),
        ("no_bus", "unit", Level.WARN, "fails with 1: Failed to connect to bus", "apt-get install dbus"),
        ("old_systemd", "unit namespaces", Level.WARN, "Unknown assignment: PrivateIPC=yes", "journalctl"),
    ],
)
def test_what_systemd_cannot_carry_out(name: str, subject: str, level: Level, seen: str, remedy: str) -> None:
    """Only systemd's own exit codes, from 200 on, prove that the service would not start."""
    found = finding(fit(confinement=confinement.parse(recorded(f"unit_{name}.txt"))), subject)
    assert found.level is level
    assert seen in found.seen
    assert remedy in found.remedy


def test_settings_that_fail_only_together_are_not_blamed_on_one_group() -> None:
    asked = confinement.parse(recorded("unit_no_nesting.txt"))
    assert asked is not None
    alone = tuple(replace(trial, code=0) if trial.group == "namespaces" else trial for trial in asked.trials)
    found = finding(fit(confinement=replace(asked, trials=alone)), "unit")
    assert found.level is Level.WARN
    assert found.seen.startswith(
        "its settings work one by one, together they end with 226/NAMESPACE; the service starts"
    )
    helpless = tuple(trial for trial in alone if trial.group not in {"softer", "without"})
    assert finding(fit(confinement=replace(asked, trials=helpless)), "unit").level is Level.FAIL


def test_limits_that_a_unit_really_had() -> None:
    asked = fit().confinement
    assert asked is not None
    assert finding(fit(), "ulimits").seen == "locked memory unlimited, open files 65536"
    low = finding(fit(confinement=replace(asked, memlock=65536, nofile=1024)), "ulimits")
    assert (low.level, low.seen) == (Level.WARN, "locked memory 64 KiB, open files 1024")
    assert "lxc.prlimit" in low.remedy
    assert "ulimits" not in subjects(fit(confinement=None)), "nothing was looked at"


def test_a_drafter_that_the_host_fetches_is_held_against_its_profile_there() -> None:
    of_the_hub = Drafter(hub=Hub(repo="owner/Drafter", revision="v1"), profile=PRODUCTION.drafter.profile)
    inventory = PRODUCTION.model_copy(update={"drafter": of_the_hub})
    assert read_drafter(inventory).failure is None, "there is nothing on the laptop to look at"
    found = next(f for f in judge(fit(drafter=read_drafter(inventory)), inventory) if f.subject == "drafter")
    assert (found.level, found.seen) == (
        Level.OK,
        "owner/Drafter at v1: the host fetches it after the install, held against z-lab/Qwen3.6-27B-DFlash",
    )


def test_libnuma_matters_to_the_cpu_build_only() -> None:
    without = fit(host=replace(fit().host, numa=False))
    assert "libnuma" not in {finding.subject for finding in judge(without, PRODUCTION)}
    numa = next(finding for finding in judge(without, STAGING) if finding.subject == "libnuma")
    assert numa.level is Level.FAIL
    assert "libnuma1" in numa.remedy
