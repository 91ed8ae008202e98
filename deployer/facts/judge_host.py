"""Findings about the machine: system, Python, compiler, account, clock."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.facts.finding import Finding, Level, judged
from deployer.facts.host import Host
from deployer.inventory.model import Inventory

OLDEST_PYTHON = (3, 11)
OLDEST_GLIBC = (2, 28)  # torch's and vLLM's wheels are manylinux_2_28
SKEW = 30.0  # seconds; beyond, journals of the two ends no longer line up
SKEW_OF_CERTIFICATES = 86_400.0  # seconds; beyond, indexes and the hub are refused over TLS


def host_findings(host: Host, skew: float | None, inventory: Inventory) -> Iterator[Finding]:
    """`skew` is the host's clock minus this machine's, in seconds."""
    yield judged(host.arch == "x86_64", "system", f"{host.os}, {host.arch}, kernel {host.kernel}", "use an x86-64 host")
    yield from _python(host, inventory.install.python)
    glibc = ".".join(map(str, host.glibc)) or "unknown"
    yield judged(host.glibc >= OLDEST_GLIBC, "glibc", glibc, "the wheels need glibc 2.28: use a newer system")
    seen = f"version {host.systemd}" if host.systemd_runs else "not running as init"
    yield judged(host.systemd_runs, "systemd", seen, "boot the container with systemd as its init")
    account = "root" if host.uid == 0 else f"uid {host.uid}, sudo {'without a password' if host.sudo else 'refused'}"
    line = "as root there: echo 'ACCOUNT ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ddtree-deploy"
    yield judged(host.is_root, "account", account, line)
    slower = "apt-get install rsync there; without it a slower channel is used"
    yield judged(host.rsync, "rsync", "present" if host.rsync else "absent", slower, otherwise=Level.WARN)
    if inventory.install.build == "cuda":
        yield _compiler(host)
    else:
        remedy = "apt-get install libnuma1 there: without it the engine does not load"
        yield judged(host.numa, "libnuma", "present" if host.numa else "absent", remedy)
    if skew is not None:
        yield _clock(host, skew)


def _python(host: Host, name: str) -> Iterator[Finding]:
    if not host.python:
        yield Finding(Level.FAIL, "python", f"{name} is not there", "apt-get install python3 python3-venv")
        return
    seen = f"{name} is {'.'.join(map(str, host.python))}"
    recent = host.python >= OLDEST_PYTHON
    yield judged(recent, "python", seen, "install Python 3.11 and name it in [install] python")
    yield judged(host.venv, "venv", "present" if host.venv else "no ensurepip", "apt-get install python3-venv")


def _compiler(host: Host) -> Finding:
    """On CUDA Triton compiles a launcher per kernel in C, at run time: a lack shows after the model was loaded."""
    if not host.compiler:
        remedy = "Triton needs one at run time: apt-get install gcc libc6-dev python3-dev there"
        return Finding(Level.FAIL, "compiler", "neither gcc nor clang", remedy)
    if host.miscompiled:
        seen = f"{host.compiler} fails: {host.miscompiled}"
        return Finding(Level.FAIL, "compiler", seen, "apt-get install gcc libc6-dev there")
    seen = f"{host.compiler}, Python.h {'present' if host.headers else 'absent'}"
    remedy = "Triton needs it at run time: apt-get install python3-dev there (the headers of [install] python)"
    return judged(host.headers, "compiler", seen, remedy)


def _clock(host: Host, skew: float) -> Finding:
    apart = abs(skew)
    way = "ahead of" if skew > 0 else "behind"
    seen = f"{apart:.0f} s {way} this machine's" if apart >= 1 else "equal to this machine's within a second"
    if host.synchronised is False:
        seen += ", not synchronised"
    where = "on the Proxmox host, whose clock a container has" if host.virtualization == "lxc" else "there"
    remedy = f"{where}: timedatectl set-ntp true, and chronyc makestep; or it is this machine's that is wrong"
    level = Level.FAIL if apart > SKEW_OF_CERTIFICATES else Level.WARN
    return judged(apart <= SKEW, "clock", seen, remedy, otherwise=level)
