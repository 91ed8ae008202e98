"""The Proxmox host: the kernel's numbers, and which container is ours and may open what."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from material import recorded

from deployer.facts import proxmox
from deployer.facts.nodes import Node
from deployer.facts.proxmox import Container, Proxmox
from deployer.transport.local import LocalTransport

MAC = ("bc:24:11:7a:02:9c",)


def read(name: str) -> Proxmox:
    return proxmox.parse(recorded(f"proxmox_{name}.txt"))


def node(path: str, major: int, minor: int = 0) -> Node:
    return Node(path, "character special file", major, minor, "666", "root:root")


def test_the_kernels_numbers_and_the_hosts_nodes() -> None:
    host = read("good")
    assert (host.name, host.module) == ("kpro5", "580.95.05")
    assert host.version.startswith("pve-manager/8.4.1")
    assert dict(host.majors)["nvidia-uvm"] == 511
    assert [found.path for found in host.devices][:2] == ["/dev/nvidia0", "/dev/nvidia1"]


def test_our_container_is_known_by_its_network_card_else_by_its_name() -> None:
    host = read("good")
    assert [found.id for found in host.containers] == ["128", "129"]
    by_card, by_name = host.container(MAC, "other"), host.container((), "ct129")
    assert by_card is not None
    assert by_card == by_name
    assert by_card.id == "129"
    assert host.container(("aa:aa:aa:aa:aa:aa",), "nobody") is None
    twice = Proxmox("p", containers=(Container("/etc/pve/lxc/1.conf", "x"), Container("/etc/pve/lxc/2.conf", "x")))
    assert twice.container((), "x") is None, "two of a name are none"


def test_a_containers_settings() -> None:
    ours = read("good").container(MAC, "")
    assert ours is not None
    assert ours.rules == ("c 195:* rwm", "c 511:* rwm", "c 510:* rwm")
    assert (ours.nesting, ours.unprivileged) == (True, False)
    assert ours.mounted[:2] == ("/dev/nvidia0", "/dev/nvidia1")
    newer = read("dev_entries").container(MAC, "")
    assert newer is not None
    assert newer.passed[:3] == ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
    assert newer.unprivileged
    old = read("rules_of_cgroup_v1").container(MAC, "")
    assert old is not None
    assert (old.rules, old.old_rules) == ((), ("c 195:* rwm", "c 511:* rwm"))


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ("c 511:* rwm", True),
        ("c 511:0 rw", True),
        ("c *:* rwm", True),
        ("c 511:*", True),
        ("a", True),
        ("c 509:* rwm", False),
        ("c 511:1 rwm", False),
        ("c 511:* r", False),
        ("b 511:* rwm", False),
        ("nonsense", False),
    ],
)
def test_which_rules_open_a_node(rule: str, allowed: bool) -> None:
    assert Container("x", rules=(rule,)).allows(node("/dev/nvidia-uvm", 511)) is allowed


def test_a_dev_entry_brings_its_own_rule() -> None:
    assert Container("x", passed=("/dev/nvidia-uvm",)).allows(node("/dev/nvidia-uvm", 511))


def test_the_command_reads_the_present_of_each_file_and_no_snapshot(tmp_path: Path) -> None:
    (tmp_path / "129.conf").write_text(
        "arch: amd64\nhostname: now\nnet0: name=eth0,hwaddr=BC:24:11:7A:02:9C\nlxc.cgroup2.devices.allow = c 195:* rwm\n"
        "features: nesting=1\nrootfs: local:secret\n\n[before]\nhostname: then\nlxc.cgroup2.devices.allow: c 1:* rwm\n"
    )
    (tmp_path / "130.conf").write_text("hostname: other\n")
    said = subprocess.check_output(["/bin/sh", "-c", proxmox.command(str(tmp_path))], text=True)
    assert "secret" not in said, "only what is asked for leaves the host"
    found = proxmox.parse(said).containers
    assert [(one.id, one.hostname, one.rules) for one in found] == [
        ("129", "now", ("c 195:* rwm",)),
        ("130", "other", ()),
    ]
    assert found[0].macs == MAC
    assert found[0].nesting


def test_a_machine_that_is_no_proxmox_host() -> None:
    assert read("is_only_a_jump_host") == Proxmox("gate")
    here = proxmox.read(LocalTransport())
    assert here.name
    assert here.containers == ()
