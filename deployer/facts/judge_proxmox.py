"""Findings about the Proxmox host under a container: its kernel's GPU numbers against the container's rules."""

from __future__ import annotations

import re
from collections.abc import Iterator

from deployer.facts.finding import Finding, Level, judged
from deployer.facts.host import Host
from deployer.facts.nodes import NEEDED
from deployer.facts.proxmox import Container, Proxmox
from deployer.inventory.model import Inventory

_CARD = re.compile(r"/dev/nvidia\d+")


def proxmox_findings(proxmox: Proxmox, host: Host, inventory: Inventory) -> Iterator[Finding]:
    """Nothing for a jump host that is no Proxmox host. `host` is the container, as it sees itself."""
    if not proxmox.version:
        return
    yield Finding(Level.OK, "proxmox", f"{proxmox.name}, {proxmox.version}")
    if inventory.checks.gpus:
        yield from _driver(proxmox)
    container = proxmox.container(host.macs, host.name)
    if container is None:
        seen = f"no configuration of {len(proxmox.containers)} has the address of {host.name or 'the box'}"
        remedy = f"log in to {proxmox.name} as root, or allow it sudo: the container's device rules were not looked at"
        yield Finding(Level.WARN, "container", seen, remedy)
        return
    kind = "unprivileged" if container.unprivileged else "privileged"
    remedy = (
        f"systemd's sandboxes may fail: pct set {container.id} --features nesting=1, then pct reboot {container.id}"
    )
    seen = f"{container.file}, {kind}, nesting {'on' if container.nesting else 'off'}"
    yield judged(container.nesting, "container", seen, remedy, otherwise=Level.WARN)
    if inventory.checks.gpus:
        yield from _rules(proxmox, container)
        yield from _passed(proxmox, container, inventory.checks.gpus)


def _driver(proxmox: Proxmox) -> Iterator[Finding]:
    """The kernel's side: module loaded, uvm with a number, nodes made."""
    remedy = f"on {proxmox.name}: modprobe nvidia; if that fails, build it for its kernel (dkms autoinstall)"
    yield judged(proxmox.module is not None, "host's driver", proxmox.module or "no module is loaded", remedy)
    majors = dict(proxmox.majors)
    if proxmox.module is None:
        return
    loaded = "nvidia-uvm" in majors
    seen = f"nvidia-uvm has major {majors['nvidia-uvm']}" if loaded else "nvidia-uvm is not loaded"
    remedy = f"on {proxmox.name}: modprobe nvidia-uvm && nvidia-modprobe -u -c=0, and both at each boot"
    yield judged(loaded, "host's uvm", seen, remedy)
    stale = [node for node in proxmox.devices if node.path in NEEDED[1:] and node.major != majors.get("nvidia-uvm")]
    if loaded and stale:
        seen = f"{stale[0].path} has major {stale[0].major}, the kernel's is {majors['nvidia-uvm']}"
        remedy = f"on {proxmox.name}: rm {stale[0].path} && nvidia-modprobe -u -c=0"
        yield Finding(Level.FAIL, "host's nodes", seen, remedy)


def _handed(container: Container) -> tuple[str, ...]:
    return (*container.passed, *container.mounted)


def _rules(proxmox: Proxmox, container: Container) -> Iterator[Finding]:
    """Of the nodes that are handed to it; those that are not are a finding of their own."""
    handed = [node for node in proxmox.devices if node.usable and node.path in _handed(container)]
    refused = [node for node in handed if not container.allows(node)]
    if not refused:
        yield Finding(Level.OK, "cgroup rules", "every NVIDIA node that it gets is allowed")
        return
    majors = sorted({node.major for node in refused})
    paths, numbers = ", ".join(node.path for node in refused), ", ".join(map(str, majors))
    seen = f"{paths}: major {numbers} is not allowed (allowed: {', '.join(container.rules) or 'nothing'})"
    if container.old_rules:
        seen += "; rules by lxc.cgroup.devices are of cgroup v1 and ignored"
    lines = "; ".join(f"lxc.cgroup2.devices.allow: c {major}:* rwm" for major in majors)
    remedy = f"on {proxmox.name}, in {container.file}: {lines}; then pct reboot {container.id}"
    yield Finding(Level.FAIL, "cgroup rules", seen, remedy)


def _passed(proxmox: Proxmox, container: Container, gpus: int) -> Iterator[Finding]:
    """The two nodes that every card needs, and as many cards as the inventory wants."""
    handed = set(_handed(container))
    cards = [node.path for node in proxmox.devices if _CARD.fullmatch(node.path)]
    lacking = gpus - len(handed & set(cards))
    absent = [path for path in NEEDED if path not in handed]
    absent += [path for path in cards if path not in handed][: max(0, lacking)]
    if absent:
        entries = "; ".join(f"lxc.mount.entry: {path} {path[1:]} none bind,optional,create=file" for path in absent)
        remedy = f"on {proxmox.name}, in {container.file}: {entries}; then pct reboot {container.id}"
        yield Finding(Level.FAIL, "passed nodes", f"not passed into the container: {', '.join(absent)}", remedy)
