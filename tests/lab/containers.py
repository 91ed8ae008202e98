"""The containers: what sets them apart, their LXC configuration, and their root file systems over the image."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from .machine import sh
from .place import Place

GUEST = Path(__file__).resolve().parent / "guest"


@dataclass(frozen=True)
class Container:
    """One machine of the lab. The hardware address is fixed: a random one costs 30 s of stale ARP after each reset."""

    name: str
    address: str
    hwaddr: str
    user: str

    @property
    def vmid(self) -> str:
        """Its number in kpro5."""
        return self.name.removeprefix("ct")

    @property
    def inside(self) -> str:
        """Its LXC directory, seen from kpro5's root."""
        return f"var/lib/lxc/{self.vmid}"


KPRO5 = Container("kpro5", "10.129.0.5", "02:00:00:00:00:05", "root")
CT129 = Container("ct129", "10.130.0.129", "02:00:00:00:01:29", "deploy")
CT130 = Container("ct130", "10.130.0.130", "02:00:00:00:01:30", "deploy")


def guests(place: Place) -> tuple[Container, ...]:
    """The containers that kpro5 runs in this lab."""
    return tuple(container for container in (CT129, CT130) if container.vmid in place.guests)


def containers(place: Place) -> tuple[Container, ...]:
    """All of a lab's, the outer one first."""
    return (KPRO5, *guests(place))


def _common(container: Container, rootfs: str, mode: str) -> list[str]:
    return [
        "lxc.include = /usr/share/lxc/config/common.conf",
        "lxc.arch = linux64",
        f"lxc.uts.name = {container.name}",
        f"lxc.rootfs.path = dir:{rootfs}",
        "lxc.apparmor.profile = unconfined",
        "lxc.mount.auto =",  # common.conf's own, taken back
        f"lxc.mount.auto = proc:{mode} sys:{mode} cgroup:{mode}:force",
        "lxc.net.0.type = veth",
        "lxc.net.0.name = eth0",
        "lxc.net.0.flags = up",
        f"lxc.net.0.hwaddr = {container.hwaddr}",
        f"lxc.net.0.ipv4.address = {container.address}/24",
        # kpro5 is a jump host, not a router; a new network namespace would copy the machine's setting.
        "lxc.sysctl.net.ipv4.ip_forward = 0",
    ]


def kpro5_config(place: Place) -> str:
    """LXC configuration of the outer container. Its guests' roots are bound into it where its own LXC looks for them."""
    own = [
        # lxc.net.0.link would look for the bridge in the machine's namespace; the script runs in the lab's.
        f"lxc.net.0.script.up = {place.run / 'join-bridge'}",
        *(f"lxc.mount.entry = {place.rootfs(ct.name)} {ct.inside}/rootfs none bind 0 0" for ct in guests(place)),
    ]
    return "\n".join([*_common(KPRO5, str(place.rootfs(KPRO5.name)), "rw"), *own, ""])


def guest_config(guest: Container) -> str:
    """LXC configuration of one of kpro5's containers, as kpro5 reads it."""
    own = ["lxc.net.0.link = vmbr0", "lxc.net.0.ipv4.gateway = 10.130.0.1"]
    return "\n".join([*_common(guest, f"/{guest.inside}/rootfs", "mixed"), *own, ""])


def mount_root(place: Place, container: Container, image: Path) -> None:
    """Lay the container's own, empty layer over the image and write into it what makes it this machine."""
    overlay = place.overlay(container.name)
    for part in ("up", "work", "rootfs"):
        (overlay / part).mkdir(parents=True)
    options = f"lowerdir={image},upperdir={overlay / 'up'},workdir={overlay / 'work'}"
    sh("mount", "-t", "overlay", place.namespace, "-o", options, overlay / "rootfs")
    root = overlay / "rootfs"
    (root / "etc/hostname").write_text(f"{container.name}\n")
    peers = "".join(f"{ct.address} {ct.name}\n" for ct in guests(place)) if container is KPRO5 else ""
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {container.name}\n{peers}")
    seed = f"{place.namespace}/{container.name}".encode()
    (root / "etc/machine-id").write_text(hashlib.sha256(seed).hexdigest()[:32] + "\n")
    _install(place.keys / container.name, root / "etc/ssh/ssh_host_ed25519_key", 0o600)
    _install(place.keys / f"{container.name}.pub", root / "etc/ssh/ssh_host_ed25519_key.pub", 0o644)
    authorized = place.client_key.with_suffix(".pub")
    for home in ("root", "home/deploy"):
        _install(authorized, root / home / ".ssh/authorized_keys", 0o644)


def dress_kpro5(place: Place) -> None:
    """Give kpro5 what Proxmox would: a bridge, its guests' configurations, `pct` (a stand-in), guests started at boot."""
    root = place.rootfs(KPRO5.name)
    _install(GUEST / "pct", root / "usr/local/sbin/pct", 0o755)
    units = root / "etc/systemd/system"
    wants = units / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    for unit in ("vmbr0.service", "pct@.service"):
        _install(GUEST / unit, units / unit, 0o644)
    for guest in guests(place):
        (root / guest.inside / "rootfs").mkdir(parents=True)
        (root / guest.inside / "config").write_text(guest_config(guest))
        (wants / f"pct@{guest.vmid}.service").symlink_to("../pct@.service")


def _install(source: Path, target: Path, mode: int) -> None:
    shutil.copyfile(source, target)
    target.chmod(mode)
