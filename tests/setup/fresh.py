"""Runs a command on a machine where nothing was installed by hand: a new minimal Debian, and a clean clone of HEAD in it.

A stand-in for a machine: a root file system and processes of its own, on this machine's kernel, network and cgroups. How pip and
apt reach their registries is this machine's configuration and is carried over; software is not.

usage: python3 -m tests.setup.fresh DIR [COMMAND]      COMMAND: make demo. DIR is made anew, and stays for a look.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.lab.base import apt_sources, apt_transport, suite_of_machine
from tests.lab.machine import LabError, sh

REPO = Path(__file__).resolve().parents[2]
MARK = ".fresh"
CHECKOUT = "root/ddtree-deploy"
PACKAGES = "ca-certificates,git,make,python3"
"""What README asks for beside a bare Debian: Python, make, and git to fetch the project."""


def pip_settings() -> dict[str, str]:
    """This machine's pip configuration as the environment variables that mean the same."""
    listed = sh(sys.executable, "-m", "pip", "config", "list", check=False).stdout.splitlines()
    settings = {}
    for line in sorted(listed, key=lambda line: line.startswith(":env:")):  # the environment wins, as in pip
        name, _, value = line.partition("=")
        key = name.removeprefix(":env:.").removeprefix("global.").upper().replace("-", "_")
        settings[f"PIP_{key}"] = shlex.split(value)[0] if value else ""
    return settings


def local_paths(settings: dict[str, str]) -> list[Path]:
    """Files and folders of this machine that the settings name; of an index, the folder around it, where its files lie."""
    words = {
        word.removeprefix("file://").removesuffix("/simple") for value in settings.values() for word in value.split()
    }
    return sorted(Path(word) for word in words if word.startswith("/") and Path(word).exists())


def make(root: Path, settings: dict[str, str]) -> None:
    """The Debian and the clone in it. Raises LabError for a folder that is not this script's, or a tool that fails."""
    if root.exists() and not (root / MARK).exists():
        raise LabError(f"{root} exists and was not made by this script: name another folder")
    shutil.rmtree(root, ignore_errors=True)
    sources = "\n".join(path.read_text() for path in apt_sources())
    transport = apt_transport()
    options = ["--quiet", "--mode=root", "--variant=minbase", f"--include={PACKAGES}", *transport]
    sh("mmdebstrap", *options, suite_of_machine(), root, "-", stdin=sources, timeout=900)
    (root / MARK).touch()
    for path in (Path("/etc/resolv.conf"), *(path for path in local_paths(settings) if path.is_file())):
        (root / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path.relative_to("/"))
    lines = [f"{option.removeprefix('--aptopt=')}\n" for option in transport]
    (root / "etc/apt/apt.conf.d/90machine").write_text("".join(lines))
    sh("git", "clone", "-q", "--no-hardlinks", REPO, root / CHECKOUT)


def run(root: Path, settings: dict[str, str], command: str) -> int:
    """The command's exit code; its processes and mounts are gone afterwards, and so is a lab that it left up."""
    mounts = [
        f"mount --bind {root} {root}"
    ]  # a root that is a mount point, as every machine's is: unshare(1) wants one
    mounts += [f"mount -t proc proc {root}/proc", f"mount -t tmpfs tmpfs {root}/run"]
    mounts += [f"mount --rbind /{name} {root}/{name}" for name in ("sys", "dev")]
    for path in local_paths(settings):
        if path.is_dir():
            (root / path.relative_to("/")).mkdir(parents=True, exist_ok=True)
            mounts.append(f"mount --bind {path} {root}{path}")
    environment = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **settings}
    inside = f"cd /{CHECKOUT}; {command}; code=$?; tests/lab/lab.sh down >/dev/null; exit $code"
    words = [f"{name}={value}" for name, value in environment.items()]
    # Not chroot: whoever is in one may not make user namespaces, and systemd in the lab's containers wants some.
    mounts += [f"cd {root}; mkdir -p mnt/old; pivot_root . mnt/old; umount --lazy mnt/old"]
    mounts.append(shlex.join(["exec", "env", "-i", *words, "bash", "-c", inside]))
    space = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    return subprocess.run([*space, "bash", "-ec", "\n".join(mounts)], check=False).returncode


def main() -> int:
    root = Path(sys.argv[1]).absolute()
    command = " ".join(sys.argv[2:]) or "make demo"
    settings = pip_settings()
    try:
        make(root, settings)
    except LabError as error:
        print(f"fresh: {error}", file=sys.stderr)
        return 1
    began = time.monotonic()
    code = run(root, settings, command)
    print(f"fresh: `{command}` ended with {code} after {time.monotonic() - began:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
