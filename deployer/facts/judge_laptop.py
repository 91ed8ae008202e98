"""Findings about this machine, from which is deployed."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.facts.finding import Finding, Level, judged
from deployer.facts.judge_room import DOWNLOADS, GIB
from deployer.facts.laptop import Laptop
from deployer.inventory.model import Inventory

OLDEST_RSYNC = (3, 1)  # the first with --info=progress2


def laptop_findings(laptop: Laptop, inventory: Inventory) -> Iterator[Finding]:
    """Tools, keys, variables, room for wheels. The models have findings of their own."""
    python = ".".join(map(str, laptop.python))
    yield judged(laptop.python >= (3, 11), "system", f"{laptop.system}, Python {python}", "use Python 3.11 or newer")
    remedy = "install OpenSSH's client: hosts are resolved by ssh -G"
    yield judged(bool(laptop.openssh), "ssh", f"OpenSSH {laptop.openssh or 'absent'}", remedy)
    yield _rsync(laptop)
    yield from _keys(laptop)
    if laptop.unset:
        names = ", ".join(f"${name}" for name in laptop.unset)
        remedy = f"export {' '.join(laptop.unset)}, then repeat: [serve.environment] takes them from here"
        yield Finding(Level.FAIL, "environment", f"{names} not set", remedy)
    if laptop.wheels is not None:
        yield from _wheels(laptop, inventory)


def _rsync(laptop: Laptop) -> Finding:
    rsync = laptop.rsync
    seen = f"{rsync.kind} {'.'.join(map(str, rsync.version))}" if rsync.version else "absent"
    good = rsync.kind == "rsync" and rsync.version >= OLDEST_RSYNC
    remedy = "install rsync 3.1 or newer (macOS: brew install rsync): without it a push may be slower"
    return judged(good, "rsync", seen, remedy, otherwise=Level.WARN)


def _keys(laptop: Laptop) -> Iterator[Finding]:
    """Said aloud only: whether a hop takes them, the hop says."""
    if laptop.identities is None:
        return
    agent = "no agent" if laptop.keys is None else f"{laptop.keys} in the agent"
    seen = f"{agent}, {', '.join(map(str, laptop.identities)) or 'none on disk'}"
    remedy = "ssh-keygen -t ed25519, then ssh-copy-id to each hop; or ssh-add a key that is elsewhere"
    yield judged(bool(laptop.keys or laptop.identities), "keys", seen, remedy, otherwise=Level.WARN)


def _wheels(laptop: Laptop, inventory: Inventory) -> Iterator[Finding]:
    folder, needed = inventory.install.wheelhouse, DOWNLOADS[inventory.install.build]
    if laptop.wheels:
        yield Finding(Level.OK, "wheelhouse", f"{laptop.wheels} wheels in {folder}; install compares them by SHA-256")
        return
    yield judged(
        laptop.pip, "pip", "present" if laptop.pip else "absent", "python -m ensurepip: it fills the wheelhouse"
    )
    seen = f"{folder} is empty, {laptop.free / GIB:.1f} GiB free"
    remedy = f"about {needed / GIB:g} GiB are downloaded there: make room, or name another [install] wheelhouse"
    yield judged(laptop.free >= needed, "wheelhouse", seen, remedy)
