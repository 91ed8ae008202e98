"""Findings about room: bytes and inodes of everything that a deployment writes, added up per file system."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from deployer.facts.disk import Disk
from deployer.facts.finding import Finding, Level, judged
from deployer.facts.room import Room
from deployer.inventory.model import Inventory

GIB = 2**30
# A release as installed, bytecode with it; its wheels, which pip holds in a temporary folder and keeps in its cache.
RELEASE = {"cpu": 4 * GIB, "cuda": 12 * GIB}
DOWNLOADS = {"cpu": 1 * GIB, "cuda": 5 * GIB}
COMPILED = {"cpu": GIB // 8, "cuda": 2 * GIB}  # vLLM's, Triton's and inductor's caches
INODES = 100_000  # a release holds about 60 000 files
SHM = 1 * GIB  # what NCCL and the workers want for several GPUs


@dataclass(frozen=True)
class Want:
    """Something that will be written, in bytes and inodes."""

    disk: Disk
    what: str
    size: int
    inodes: int = 0


def wants(room: Room, inventory: Inventory) -> tuple[Want, ...]:
    """All of a first deployment; what was pushed before is not counted again."""
    build = inventory.install.build
    models = max(0, room.models - room.pushed)
    made = [
        Want(room.root, "a release", RELEASE[build], INODES),
        Want(room.root, "models", models, 100),
        Want(room.cache, "compiled kernels", COMPILED[build], 5000),
    ]
    if inventory.install.source == "wheelhouse":
        made.append(Want(room.root, "wheels", DOWNLOADS[build], 500))
    else:
        made.append(Want(room.temporary, "pip's downloads", DOWNLOADS[build], 1000))
        made.append(Want(room.pip, "pip's cache", DOWNLOADS[build], 1000))
    return tuple(want for want in made if want.size)


def room_findings(room: Room, inventory: Inventory, *, deployed: bool) -> Iterator[Finding]:
    """Beside a release in place a lack is said aloud only: another one may never come."""
    found: dict[str, list[Want]] = {}
    for want in wants(room, inventory):
        found.setdefault(want.disk.mount, []).append(want)
    for mount, wanted in found.items():
        least = inventory.checks.min_free_gib * GIB if mount == room.root.mount else 0
        yield from _file_system(wanted, least, inventory, deployed=deployed, subject=_subject(mount, room))
    yield from _mounted(room)
    if inventory.checks.gpus > 1:
        remedy = (
            "NCCL fails in a small one: mount -o remount,size=4g /dev/shm there, and in /etc/fstab for the next boot"
        )
        seen = f"{room.shm.free / GIB:.1f} of {room.shm.size / GIB:.1f} GiB free"
        yield judged(room.shm.free >= SHM, "/dev/shm", seen, remedy)


def _subject(mount: str, room: Room) -> str:
    return "disk" if mount == room.root.mount else f"disk {mount}"


def _file_system(
    wanted: list[Want], least: float, inventory: Inventory, *, deployed: bool, subject: str
) -> Iterator[Finding]:
    disk = wanted[0].disk
    size, inodes = sum(want.size for want in wanted), sum(want.inodes for want in wanted)
    parts = ", ".join(f"{want.what} {want.size / GIB:.1f}" for want in wanted)
    seen = f"{disk}; to be written, in GiB: {parts}"
    # With a release in place the next one needs less: what is there is not fetched again.
    needed = least / 2 if deployed else max(size, least)
    remedy = f"{needed / GIB:.3g} GiB are wanted: make room, or set root to a larger file system"
    if disk.free < needed:
        yield Finding(Level.FAIL, subject, seen, remedy)
    else:
        short = f"a new release may not fit: make room, or lower [install] keep ({inventory.install.keep})"
        yield judged(disk.free >= size, subject, seen, short, otherwise=Level.WARN)
    if disk.inodes_free is not None:
        remedy = f"{inodes} are wanted, a release alone has about 60 000 files: use a file system with more inodes"
        name = subject.replace("disk", "inodes")
        lack = Level.WARN if deployed else Level.FAIL
        yield judged(disk.inodes_free >= inodes, name, f"{disk.inodes_free} free", remedy, otherwise=lack)


def _mounted(room: Room) -> Iterator[Finding]:
    """Only what is wrong: file systems that cannot be written, or that code cannot be loaded from."""
    for disk in _once((room.root, room.cache, room.temporary)):
        if "ro" in disk.options:
            remedy = f"see why there (dmesg), then: mount -o remount,rw {disk.mount}"
            yield Finding(Level.FAIL, f"mount {disk.mount}", "read-only", remedy)
    for disk in _once((room.root, room.cache)):
        if "noexec" in disk.options:
            remedy = f"libraries and compiled kernels are loaded from there: mount -o remount,exec {disk.mount}"
            yield Finding(Level.FAIL, f"mount {disk.mount}", "noexec", remedy)


def _once(disks: Iterable[Disk]) -> tuple[Disk, ...]:
    return tuple({disk.mount: disk for disk in disks}.values())
