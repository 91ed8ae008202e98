"""The machine itself: system, Python, compiler, systemd, account, clock, and the small things an install needs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from deployer.facts.sections import pairs
from deployer.transport.base import Transport

COMMAND = r"""
PATH=$PATH:/usr/sbin:/sbin
. /etc/os-release 2>/dev/null
echo "os=${PRETTY_NAME:-unknown}"
echo "kernel=$(uname -r)"
echo "arch=$(uname -m)"
echo "cpus=$(nproc)"
echo "memory_kib=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)"
echo "virtualization=$(systemd-detect-virt 2>/dev/null)"
echo "systemd=$(systemctl --version 2>/dev/null | sed -n '1s/systemd \([0-9]*\).*/\1/p')"
echo "running_systemd=$(test -d /run/systemd/system && echo yes)"
echo "python=$({PYTHON} -c 'import sys; print(".".join(map(str, sys.version_info[:3])))' 2>/dev/null)"
echo "venv=$({PYTHON} -c 'import ensurepip, venv' 2>/dev/null && echo yes)"
echo "glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/glibc //')"
echo "uid=$(id -u)"
echo "sudo=$(sudo -n true 2>/dev/null && echo yes)"
echo "rsync=$(command -v rsync)"
echo "numa=$(ldconfig -p 2>/dev/null | grep -q 'libnuma\.so\.1' && echo yes)"
echo "name=$(uname -n)"
echo "macs=$(cat /sys/class/net/*/address 2>/dev/null | tr '\n' ' ')"
echo "synchronised=$(timedatectl show -p NTPSynchronized --value 2>/dev/null)"
cc=$(command -v gcc || command -v clang); echo "compiler=$cc"
include=$({PYTHON} -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null)
echo "headers=$(test -e "$include/Python.h" && echo yes)"
test -z "$cc" || echo "compiled=$(printf '#include <stdlib.h>\n#include <dlfcn.h>\n' |
  LC_ALL=C "$cc" -x c -fsyntax-only - 2>&1 | grep -m 1 error)"
echo "clock=$(date +%s.%N)"
"""


@dataclass(frozen=True)
class Host:
    """Versions are tuples of numbers, empty when the thing is absent.

    `compiler` is its path, `miscompiled` the first error when it reads C's own headers; `clock` is in Unix seconds,
    None when it was not told; `macs` are the addresses of its network cards, by which a container is recognised.
    """

    os: str
    kernel: str
    arch: str
    cpus: int
    memory_kib: int
    virtualization: str
    systemd: int
    systemd_runs: bool
    python: tuple[int, ...]
    venv: bool
    glibc: tuple[int, ...]
    uid: int
    sudo: bool
    rsync: bool
    numa: bool
    name: str = ""
    macs: tuple[str, ...] = ()
    compiler: str = ""
    headers: bool = False
    miscompiled: str = ""
    clock: float | None = None
    synchronised: bool | None = None

    @property
    def is_root(self) -> bool:
        return self.uid == 0 or self.sudo


def command(python: str) -> str:
    """The remote command; `python` is the interpreter that the inventory names."""
    return COMMAND.replace("{PYTHON}", shlex.quote(python)).strip()


def parse(text: str) -> Host:
    """Reads the command's key=value lines."""
    values = pairs(text.splitlines())
    return Host(
        os=values.get("os", "unknown"),
        kernel=values.get("kernel", "unknown"),
        arch=values.get("arch", "unknown"),
        cpus=int(values.get("cpus") or 0),
        memory_kib=int(values.get("memory_kib") or 0),
        virtualization=values.get("virtualization", "") or "none",
        systemd=int(values.get("systemd") or 0),
        systemd_runs=bool(values.get("running_systemd")),
        python=version(values.get("python", "")),
        venv=bool(values.get("venv")),
        glibc=version(values.get("glibc", "")),
        uid=int(values.get("uid") or -1),
        sudo=bool(values.get("sudo")),
        rsync=bool(values.get("rsync")),
        numa=bool(values.get("numa")),
        name=values.get("name", ""),
        macs=tuple(mac for mac in values.get("macs", "").split() if mac != "00:00:00:00:00:00"),
        compiler=values.get("compiler", ""),
        headers=bool(values.get("headers")),
        miscompiled=values.get("compiled", ""),
        clock=float(values["clock"]) if values.get("clock") else None,
        synchronised={"yes": True, "no": False}.get(values.get("synchronised", "")),
    )


def version(text: str) -> tuple[int, ...]:
    """'3.11.2' -> (3, 11, 2); whatever is no number ends it."""
    numbers: list[int] = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def read(transport: Transport, python: str = "python3") -> Host:
    return parse(transport.run(command(python)).stdout)
