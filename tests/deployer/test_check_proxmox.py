"""check on the Proxmox host: the kernel's side of the GPUs, and the container's rules against its numbers."""

from __future__ import annotations

import pytest
from fit import PRODUCTION, STAGING, fit
from material import RECORDED, recorded

from deployer.facts import proxmox
from deployer.facts.finding import Finding, Level
from deployer.facts.judge_proxmox import proxmox_findings


def found(name: str) -> dict[str, Finding]:
    seen = proxmox.parse(recorded(f"proxmox_{name}.txt"))
    findings = list(proxmox_findings(seen, fit().host, PRODUCTION))
    assert len({finding.subject for finding in findings}) == len(findings)
    return {finding.subject: finding for finding in findings}


@pytest.mark.parametrize("name", ["good", "dev_entries"])
def test_a_good_host_by_rules_or_by_dev_entries(name: str) -> None:
    assert {finding.level for finding in found(name).values()} == {Level.OK}
    assert set(found(name)) == {"proxmox", "host's driver", "host's uvm", "container", "cgroup rules"}


@pytest.mark.parametrize("name", sorted(path.stem.removeprefix("proxmox_") for path in RECORDED.glob("proxmox_*")))
def test_every_finding_that_is_not_good_says_what_to_do(name: str) -> None:
    assert all(finding.remedy for finding in found(name).values() if finding.level is not Level.OK)


def test_the_major_of_uvm_changed_with_the_kernel_and_the_rule_did_not() -> None:
    rules = found("uvm_major_changed")["cgroup rules"]
    assert rules.level is Level.FAIL
    assert "major 511 is not allowed (allowed: c 195:* rwm, c 509:* rwm)" in rules.seen
    assert "in /etc/pve/lxc/129.conf: lxc.cgroup2.devices.allow: c 511:* rwm; then pct reboot 129" in rules.remedy


def test_rules_of_cgroup_v1_are_no_rules() -> None:
    rules = found("rules_of_cgroup_v1")["cgroup rules"]
    assert rules.level is Level.FAIL
    assert "allowed: nothing" in rules.seen
    assert "of cgroup v1 and ignored" in rules.seen
    assert "c 195:* rwm; lxc.cgroup2.devices.allow: c 511:* rwm" in rules.remedy


def test_a_container_without_nesting_and_with_one_card_only() -> None:
    seen = found("without_nesting_one_card")
    assert seen["container"].level is Level.WARN, "the transient unit decides"
    assert "pct set 129 --features nesting=1" in seen["container"].remedy
    passed = seen["passed nodes"]
    assert (passed.level, passed.seen) == (Level.FAIL, "not passed into the container: /dev/nvidia1")
    assert "lxc.mount.entry: /dev/nvidia1 dev/nvidia1 none bind,optional,create=file" in passed.remedy


@pytest.mark.parametrize(
    ("name", "subject", "seen", "remedy"),
    [
        ("uvm_not_loaded", "host's uvm", "nvidia-uvm is not loaded", "modprobe nvidia-uvm"),
        ("stale_node", "host's nodes", "/dev/nvidia-uvm has major 509, the kernel's is 511", "nvidia-modprobe -u"),
        ("no_module", "host's driver", "no module is loaded", "modprobe nvidia"),
    ],
)
def test_the_kernels_side(name: str, subject: str, seen: str, remedy: str) -> None:
    finding = found(name)[subject]
    assert (finding.level, finding.seen) == (Level.FAIL, seen)
    assert remedy in finding.remedy


def test_configurations_that_cannot_be_read_are_said_and_stop_nothing() -> None:
    container = found("not_root")["container"]
    assert container.level is Level.WARN
    assert "log in to kpro5 as root" in container.remedy
    assert "cgroup rules" not in found("not_root")


def test_a_plain_jump_host_and_a_host_without_gpus() -> None:
    assert found("is_only_a_jump_host") == {}
    seen = proxmox.parse(recorded("proxmox_good.txt"))
    assert {finding.subject for finding in proxmox_findings(seen, fit().host, STAGING)} == {"proxmox", "container"}
