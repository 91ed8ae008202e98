"""The image both containers boot from: a small Debian with systemd and sshd, cached as a tar, unpacked once."""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from .machine import LabError, sh

# What Proxmox's Debian containers have, plus lxc (kpro5 runs CT129 with it) and libnuma1 (vLLM's CPU build links it).
# Neither a compiler nor Python's headers: a target machine has none, so nothing in the lab may rely on them.
PACKAGES = (
    "ca-certificates",
    "curl",
    "dbus",
    "iproute2",
    "libnuma1",
    "libpam-systemd",
    "lxc",
    "openssh-server",
    "procps",
    "python3",
    "python3-venv",
    "rsync",
    "sudo",
    "systemd",
    "systemd-sysv",
)

_MMDEBSTRAP = (
    "--mode=root",
    "--variant=minbase",
    "--dpkgopt=force-unsafe-io",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
)

# Units that want hardware, a network of their own or a console, none of which a container here has.
_MASKED = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "lxc-monitord.service",
    "lxc-net.service",
    "lxc.service",
    "sys-kernel-debug.mount",
    "systemd-udev-trigger.service",
    "systemd-udevd.service",
)

_FILES = {
    "etc/default/locale": "",
    "etc/machine-id": "",
    "etc/resolv.conf": "",
    "etc/ssh/sshd_config.d/10-lab.conf": (
        "HostKey /etc/ssh/ssh_host_ed25519_key\n"
        "PasswordAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
        "UseDNS no\n"
    ),
    "etc/sudoers.d/deploy": "deploy ALL=(ALL) NOPASSWD:ALL\n",
}

_COMMANDS = (
    "useradd --create-home --shell /bin/bash deploy",
    "install -d -m 700 /root/.ssh",
    "install -d -m 700 -o deploy -g deploy /home/deploy/.ssh",
    "install -d /var/log/journal",
    "chmod 440 /etc/sudoers.d/deploy",
    "ln -sf /lib/systemd/system/multi-user.target /etc/systemd/system/default.target",
    # Host keys are each container's own; package sources would lead nowhere: there is no network.
    "find /etc/ssh -name ssh_host_* -delete",
    "rm -rf /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf.d/99mmdebstrap",
    "mkdir /etc/apt/sources.list.d",
    *(f"ln -sf /dev/null /etc/systemd/system/{unit}" for unit in _MASKED),
)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def image_name(suite: str, packages: Sequence[str] = PACKAGES) -> str:
    """The cached tar's name: another for another suite, package list or way of unpacking."""
    return f"{suite}-{_digest(tuple(sorted(packages)), _MMDEBSTRAP)}"


def suite_of_machine() -> str:
    """The code name of the Debian under the lab; its apt sources serve the image too."""
    name = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    if not name:
        raise LabError("/etc/os-release names no VERSION_CODENAME: the image is made from a Debian's own apt sources")
    return name


def apt_sources(etc_apt: Path = Path("/etc/apt")) -> list[Path]:
    """The machine's own Debian sources: debian.sources where there is one, else every source that is switched on."""
    parts = etc_apt / "sources.list.d"
    if (parts / "debian.sources").exists():
        return [parts / "debian.sources"]
    found = [etc_apt / "sources.list", *sorted(parts.glob("*.list")), *sorted(parts.glob("*.sources"))]
    found = [path for path in found if path.is_file() and path.stat().st_size]
    if not found:
        raise LabError(f"no apt sources under {etc_apt}: configure apt before building the lab's image")
    return found


def apt_transport() -> list[str]:
    """The machine's own settings of how apt fetches (a proxy, say) for mmdebstrap, which does not read them itself."""
    dump = sh("apt-config", "dump", "--no-empty", "--format", '%F "%v";%n', "Acquire::http", "Acquire::https").stdout
    return [f"--aptopt={line}" for line in dump.splitlines()]


def rootfs_of(base: Path) -> Path:
    """Where the unpacked image of the present recipe lies, or will lie, under the cache directory `base`."""
    return base / f"{image_name(suite_of_machine())}-{_digest(_FILES, _COMMANDS)}"


def build(base: Path) -> bool:
    """Make the image unless it is there. Returns whether anything had to be done."""
    rootfs = rootfs_of(base)
    if rootfs.is_dir():
        return False
    base.mkdir(parents=True, exist_ok=True)
    tar = base / f"{image_name(suite_of_machine())}.tar"
    if not tar.exists():
        part = tar.with_name("part-" + tar.name)
        what = ("--quiet", *_MMDEBSTRAP, *apt_transport(), "--include=" + ",".join(PACKAGES))
        _in_memory(base, "mmdebstrap", *what, suite_of_machine(), part, *apt_sources())
        part.rename(tar)
    part = rootfs.with_name("part-" + rootfs.name)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    sh(
        "tar",
        "--extract",
        "--file",
        tar,
        "--directory",
        part,
        "--numeric-owner",
        "--preserve-permissions",
        "--xattrs",
        timeout=300,
    )
    for name, text in _FILES.items():
        (part / name).write_text(text)
    for command in _COMMANDS:
        sh("chroot", part, *command.split())
    part.rename(rootfs)
    _prune(base, keep={rootfs, tar})
    return True


def _in_memory(base: Path, *argv: str | Path) -> None:
    """Run a tool whose temporary files, some hundred MB in ten thousand pieces, are kept off the disk.

    They lie in a mount namespace of their own, so that nothing of them is left however the tool ends.
    """
    scratch = base / "scratch"
    scratch.mkdir(exist_ok=True)
    mount = 'mount -t tmpfs -o size=2g,mode=1777 scratch "$TMPDIR" && exec "$@"'
    sh("env", f"TMPDIR={scratch}", "unshare", "--mount", "sh", "-c", mount, "sh", *argv, timeout=900)
    scratch.rmdir()


def _prune(base: Path, keep: set[Path]) -> None:
    """Remove images of former recipes, unless a lab that is up stands on one."""
    mounted = Path("/proc/self/mounts").read_text()
    for path in set(base.glob("*-*")) - keep:
        if path.is_dir() and f"lowerdir={path}," not in mounted:
            shutil.rmtree(path)
        elif path.suffix == ".tar":
            path.unlink()
