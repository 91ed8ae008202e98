"""The machine under the lab: running its tools, and whether it can run a lab at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

CANNOT = 77  # the exit code by which test harnesses know "not on this machine" from "failed"

# tool -> Debian package
_TOOLS = {
    "lxc-start": "lxc",
    "lxc-attach": "lxc",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}


class LabError(Exception):
    """What went wrong, where, and what to do: one message for the operator."""

    exit_code = 1


class CannotRunError(LabError):
    """This machine lacks what a lab needs; nothing was changed."""

    exit_code = CANNOT

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"this machine cannot run the lab because {reason}; the subset that needs no lab is: make test-unit"
        )


def sh(*argv: str | Path, check: bool = True, timeout: float = 60, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a tool to its end. Raises LabError with the tail of what it printed if it fails and `check` is set."""
    line = [str(word) for word in argv]
    try:
        done = subprocess.run(line, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as late:
        raise LabError(f"{' '.join(line)}: no end after {timeout:.0f} s") from late
    if check and done.returncode:
        raise LabError(f"{' '.join(line)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-1500:]}")
    return done


def require_lab_machine(directory: Path) -> None:
    """Raise CannotRunError, in one sentence, unless a lab can be built and run with its files under `directory`."""
    if os.geteuid() != 0:
        raise CannotRunError("it needs root (containers, mounts and network namespaces)")
    absent = sorted({package for tool, package in _TOOLS.items() if shutil.which(tool) is None})
    if absent:
        raise CannotRunError(f"these Debian packages are not installed: {' '.join(absent)}")
    if not any(line.split()[2] in ("cgroup", "cgroup2") for line in Path("/proc/self/mounts").read_text().splitlines()):
        raise CannotRunError("no cgroup file system is mounted, and LXC needs one")
    _try(("unshare", "--mount", "--pid", "--fork", "true"), "it may not create mount and PID namespaces")
    network = "ip link add b0 type bridge && ip link add v0 type veth peer name v1 && ip link set v0 master b0"
    _try(("unshare", "--net", "sh", "-c", network), "it may not create a network namespace with a bridge and a veth")
    _try_overlay(directory)


def _try(argv: Sequence[str], reason: str) -> None:
    done = sh(*argv, check=False)
    if done.returncode:
        raise CannotRunError(f"{reason} ({done.stderr.strip().splitlines()[-1]})")


def _try_overlay(directory: Path) -> None:
    """An overlay cannot lie on every file system (another overlay, for one): mount one, in a namespace of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix="probe-") as probe:
        mount = (
            f"cd {probe} && mkdir low up work top && "
            "mount -t overlay probe -o lowerdir=low,upperdir=up,workdir=work top && touch top/x"
        )
        _try(("unshare", "--mount", "sh", "-c", mount), f"no overlay mounts under {directory} (LAB_DIR sets another)")
