"""What a lab has on the machine right now, found by looking rather than remembered; and the removal of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .machine import LabError, sh
from .place import Place

_PATIENCE = 10.0  # seconds for the kernel to let go of killed processes and their mounts


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
        for listing in cgroup.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in listing.read_text().split()}
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
        sh("lxc-stop", "-P", place.lxc, "-n", place.namespace, "--kill", check=False)
    _until(lambda: not _kill(place), "processes that do not die", lambda: f"{processes(place)}")
    _until(lambda: not _prune(place), "cgroups that stay", lambda: f"{cgroups(place)}")
    _until(lambda: not _unmount(place), "mounts in use", lambda: f"{mounts(place)}")
    if place.netns.exists():
        sh("ip", "netns", "delete", place.namespace)
    shutil.rmtree(place.run, ignore_errors=True)
    for path in (place.ssh_config, place.known_hosts, place.state, place.faults):
        path.unlink(missing_ok=True)
    if left := remains(place):
        raise LabError(f"lab {place.root} is not wholly down: {'; '.join(left)}")


def _kill(place: Place) -> list[int]:
    alive = processes(place)
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return alive


def _prune(place: Place) -> list[Path]:
    for cgroup in cgroups(place):
        for directory in _inside_out(cgroup):
            with contextlib.suppress(OSError):  # busy until its last process is reaped; asked again
                directory.rmdir()
    return cgroups(place)


def _inside_out(directory: Path) -> Iterator[Path]:
    for parent, _names, _files in os.walk(directory, topdown=False):
        yield Path(parent)


def _unmount(place: Place) -> list[str]:
    for point in mounts(place):
        sh("umount", point, check=False)
    return mounts(place)


def _until(done: Callable[[], bool], what: str, which: Callable[[], str]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise LabError(f"{what}, after {_PATIENCE:.0f} s: {which()}")
        time.sleep(0.02)
