"""Findings about the device nodes: there, real, and open to the account that the service runs as."""

from __future__ import annotations

import re
from collections.abc import Iterator

from deployer.facts.confinement import Confinement
from deployer.facts.finding import Finding, Level
from deployer.facts.gpu import Gpus
from deployer.facts.nodes import NEEDED

# The kernel's words on opening, and what mends each.
_REMEDIES = {
    "Operation not permitted": "the container's cgroup forbids it: on the Proxmox host, in /etc/pve/lxc/ID.conf, "
    "lxc.cgroup2.devices.allow: c {major}:* rwm, then pct reboot ID",
    "Permission denied": "its mode is {mode} for {owner}: on the Proxmox host give it to all (options nvidia "
    "NVreg_DeviceFileMode=0666 in /etc/modprobe.d), or for an unprivileged container dev0: {path},mode=0666",
    "No such device or address": "the kernel gives the number to nobody: modprobe nvidia-uvm on the Proxmox host, then "
    "pct reboot ID, since majors change with kernels",
    "No such device": "the module is loaded without the card: see dmesg on the Proxmox host",
    "Input/output error": "the driver cannot start the card: see dmesg on the Proxmox host for Xid and NVRM",
}
_UVM = "on the Proxmox host: nvidia-modprobe -u -c=0 at each boot, and pass the node into the container"
_PASS = "pass it into the container: dev0: PATH in /etc/pve/lxc/ID.conf (or lxc.mount.entry and a cgroup rule)"


def node_findings(gpus: Gpus, confinement: Confinement | None) -> Iterator[Finding]:
    """Nothing where neither the driver's tools nor a node is there: then the cards' own finding says so."""
    if not gpus.devices and not gpus.tool:
        return
    missing = [path for path in NEEDED if path not in {node.path for node in gpus.devices}]
    if not any(re.fullmatch(r"/dev/nvidia\d+", node.path) for node in gpus.devices):
        missing.insert(0, "/dev/nvidia0")
    hollow = [node.path for node in gpus.devices if not node.usable]
    refused = _refused(gpus, confinement)
    if missing:
        yield _bad(missing, "missing", _UVM if missing == ["/dev/nvidia-uvm"] else _PASS)
    if hollow:
        seen = "no device: the host had none when the container was started"
        yield _bad(hollow, seen, f"{_UVM}; then pct reboot ID")
    for said, paths in refused.items():
        account = confinement.account if confinement else ""
        yield _bad(paths, f"{said}, as {account} in a unit", _mended(said, paths[0], gpus))
    if not (missing or hollow or refused):
        opened = f", {confinement.account} opens them" if confinement and confinement.opened else ""
        yield Finding(Level.OK, "device nodes", f"complete{opened}")


def _bad(paths: list[str], seen: str, remedy: str) -> Finding:
    return Finding(Level.FAIL, "device nodes", f"{', '.join(paths)}: {seen}", remedy)


def _refused(gpus: Gpus, confinement: Confinement | None) -> dict[str, list[str]]:
    """The kernel's words -> the real nodes that it refused so."""
    found: dict[str, list[str]] = {}
    for path, said in confinement.opened if confinement else ():
        if said != "ok" and path in gpus.nodes:
            found.setdefault(said, []).append(path)
    return found


def _mended(said: str, path: str, gpus: Gpus) -> str:
    node = next(node for node in gpus.devices if node.path == path)
    remedy = _REMEDIES.get(said, "try there as root: head -c 0 {path}; see dmesg on the Proxmox host")
    return remedy.format(major=node.major, mode=node.mode, owner=node.owner, path=path)
