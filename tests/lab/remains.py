"""What a lab has on the machine right now, found by looking rather than remembered; and the removal of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from .machine import LabError, sh
from .place import Place

_PATIENCE = 120.0
"""Seconds for the kernel to let go. Quick as a rule; killed processes with gigabytes in memory or unwritten files end late."""


def proxies(place: Place) -> list[int]:
    """Processes that forward into this lab: the proxy module, run on this lab's own faults file."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (proc / "cmdline").read_bytes().split(b"\0")
            if b"lab.nsproxy" in words and os.fsencode(place.faults) in words:
                found.append(int(proc.name))
    return found


def cgroups(place: Place) -> list[Path]:
    """The cgroups LXC made for kpro5, in every hierarchy, outermost first."""
    prefixes = tuple(f"lxc.{kind}.{place.namespace}" for kind in ("payload", "monitor", "pivot"))
    found = []
    for directory, names, _files in os.walk("/sys/fs/cgroup"):
        mine = [name for name in names if name in prefixes or name.startswith(tuple(f"{p}-" for p in prefixes))]
        found += [Path(directory) / name for name in mine]
        names[:] = [name for name in names if name not in mine]
    return found


def mounts(place: Place) -> list[str]:
    """Mount points under the lab's run directory, innermost first."""
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [point for point in reversed(points) if point.startswith(f"{place.run}/")]


def processes(place: Place) -> list[int]:
    """Every process in the lab's cgroups or in its network namespace, and its proxy."""
    found = set(proxies(place))
    for cgroup in cgroups(place):
        for directory, _names, _files in os.walk(cgroup):  # unlike rglob, bears with cgroups that vanish meanwhile
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in Path(directory, "cgroup.procs").read_text().split()}
    if place.netns.exists():
        found |= {int(pid) for pid in sh("ip", "netns", "pids", place.namespace, check=False).stdout.split()}
    return sorted(found - {0, os.getpid()})


def remains(place: Place) -> list[str]:
    """Everything of the lab's that exists outside its cache and keys, in words. Empty: the lab is wholly down."""
    files = (place.run, place.ssh_config, place.known_hosts, place.state, place.faults)
    return [
        *(f"process {pid}" for pid in processes(place)),
        *(f"mount {point}" for point in mounts(place)),
        *(f"cgroup {cgroup}" for cgroup in cgroups(place)),
        *([f"network namespace {place.namespace}"] if place.netns.exists() else []),
        *(f"file {path}" for path in files if path.exists()),
    ]


def remove(place: Place) -> None:
    """Take down whatever there is, in whatever state it is. Raises LabError, and says of what, if something stays."""
    if place.lxc.exists():
        # The proper way first: LXC knows its own. The rest works without it, and on what it leaves.
        with contextlib.suppress(LabError):
            sh("lxc-stop", "-P", place.lxc, "-n", place.namespace, "--kill", check=False, timeout=10)
    deadline = time.monotonic() + _PATIENCE
    while left := _sweep(place):
        if time.monotonic() > deadline:
            raise LabError(f"lab {place.root} is not wholly down after {_PATIENCE:.0f} s: {'; '.join(left)}")
        time.sleep(0.02)


def _sweep(place: Place) -> list[str]:
    """Remove what can be removed now; return what remains, which another pass may find free."""
    for pid in processes(place):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for cgroup in cgroups(place):
        for directory, _names, _files in os.walk(cgroup, topdown=False):
            with contextlib.suppress(OSError):  # busy until its last process is reaped
                os.rmdir(directory)
    for point in mounts(place):
        sh("umount", point, check=False)
    if place.netns.exists() and not processes(place):
        sh("ip", "netns", "delete", place.namespace)
    if not mounts(place):
        shutil.rmtree(place.run, ignore_errors=True)
        for path in (place.ssh_config, place.known_hosts, place.state, place.faults):
            path.unlink(missing_ok=True)
    return remains(place)
