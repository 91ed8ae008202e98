"""A disk of its own under /opt/ddtree, so that it can be filled without filling the machine's."""

from __future__ import annotations

from pathlib import Path

from tests.lab.box import Lab
from tests.lab.machine import sh
from tests.lab.support import attach, wait_for

_SIZE = "14G"  # sparse: two releases, wheels, models
_CONFIG = "/var/lib/lxc/129/config"


def give_own_disk(lab: Lab, image: Path) -> None:
    """Makes a file system in `image` and mounts it at CT129's /opt/ddtree, at each of its starts. It ends with the lab."""
    sh("truncate", "-s", _SIZE, image)
    sh("mkfs.ext4", "-q", "-m", "0", image)
    device = sh("losetup", "-f", "--show", image).stdout.strip()
    try:
        init = attach(lab, "kpro5", "cat", "/proc/self/stat").stdout  # proves that kpro5 answers
        assert init, "kpro5 does not answer"
        _mount(lab, device)
    finally:
        sh("losetup", "-d", device)  # lets go when the last mount has gone
    entry = "lxc.mount.entry = /srv/ddtree opt/ddtree none bind,create=dir 0 0"
    attach(lab, "kpro5", "sh", "-c", f"echo '{entry}' >>{_CONFIG}; pct stop 129; pct start 129")
    wait_for(lambda: "/opt/ddtree" in attach(lab, "ct129", "cat", "/proc/mounts").stdout, 60)


def _mount(lab: Lab, device: str) -> None:
    """From the machine: a container may not open its block devices, a mount that is there it may use."""
    look = ("lxc-info", "-P", lab.place.lxc, "-n", lab.place.namespace, "-pH")
    [pid] = sh("nsenter", f"--net={lab.place.netns}", *look).stdout.split()
    number = Path(device).stat().st_rdev
    inside = (
        f"mknod {device} b {number >> 8} {number & 255} 2>/dev/null; mkdir -p /srv/ddtree && mount {device} /srv/ddtree"
    )
    sh("nsenter", "-t", pid, "-m", "sh", "-c", inside)
