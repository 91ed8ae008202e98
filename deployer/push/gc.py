"""`gc`: removes models and store entries that nothing refers to any more, and what broken-off pushes left behind."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deployer.hub import state
from deployer.hub.request import requests
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.plan.step import Plan, Progress, Step
from deployer.push import remote_gc, staged_gc
from deployer.push.digest import Script
from deployer.push.model import drafter, target
from deployer.push.pace import amount
from deployer.push.staged_gc import Needs
from deployer.transport.base import Transport

REMOTE = Script(
    Path(remote_gc.__file__).read_text(encoding="utf-8"),
    failed="looking after the models failed",
    remedy="see df, mount and dmesg there; what was not removed is whole, run it again",
)
YOUNG = 86_400.0  # seconds; a store entry without a model may belong to a push that goes on tomorrow
_OURS = re.compile(r"^[a-z0-9.-]+-[0-9a-f]{12}$")


@dataclass(frozen=True)
class Folder:
    """A folder among the models: its name, bytes, and the inodes of its files."""

    name: str
    size: int
    inodes: frozenset[int]


@dataclass(frozen=True)
class Entry:
    """An entry of the store: its digest, bytes, inodes, and seconds since it was last written."""

    name: str
    size: int
    inodes: frozenset[int]
    age: float


@dataclass(frozen=True)
class Survey:
    """What lies among the models of a host. `references` is name -> who refers to it."""

    folders: tuple[Folder, ...]
    store: tuple[Entry, ...]
    references: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Verdict:
    """What becomes of one folder or entry. `path` is relative to the models' folder."""

    path: str
    size: int
    keep: bool
    reason: str


def plan(inventory: Inventory, transport: Transport) -> Plan:
    """One step for each thing that lies among the models, and, of a container without sshd, in its stage on the Proxmox
    host; what is kept says why.
    """
    layout = Layout.of(inventory)
    wanted = _wanted(inventory, transport)
    steps = [_step(inventory, transport, layout, verdict) for verdict in judge(survey(inventory, transport), wanted)]
    models = tuple(steps) or (Step("gc", layout.models, "there are no models"),)
    return Plan(transport.name, (*models, *staged_gc.steps(transport, partial(_needs, inventory, transport))))


def _needs(inventory: Inventory, transport: Transport) -> Needs:
    """What is in a published model is whole; an entry of the store alone need not be."""
    found = survey(inventory, transport)
    published = {inode for folder in found.folders if not folder.name.endswith(".part") for inode in folder.inodes}
    there = frozenset(entry.name for entry in found.store if entry.inodes & published)
    return Needs(_wanted(inventory, transport), there)


def survey(inventory: Inventory, transport: Transport) -> Survey:
    """Reads; no effect. A deployment's record counts while its release is there: without it nobody can go back."""
    layout = Layout.of(inventory)
    answer = REMOTE.ask(transport, "survey", layout.models, [inventory.target.path], _texts(transport, layout))
    references: dict[str, list[str]] = {}
    for link, points in answer["links"].items():
        references.setdefault(points.rpartition("/")[2], []).append(f"link {link}")
    for found in (answer["mentions"], answer["used"]):
        for name, who in found.items():
            references.setdefault(name, []).extend(who)
    return Survey(
        folders=tuple(Folder(name, size, frozenset(inodes)) for name, size, inodes in answer["folders"]),
        store=tuple(Entry(name, size, frozenset(inodes), age) for name, size, inodes, age in answer["store"]),
        references={name: tuple(who) for name, who in references.items()},
    )


def judge(found: Survey, wanted: frozenset[str]) -> Iterator[Verdict]:
    """Decides over every folder, then over the store by what is left. `wanted` are names of folders and digests that
    the laptop would push now.
    """
    stored = frozenset(inode for entry in found.store for inode in entry.inodes)
    kept: set[int] = set()
    for folder in sorted(found.folders, key=lambda folder: folder.name):
        verdict = _folder(folder, found.references.get(folder.name, ()), wanted, stored)
        kept |= folder.inodes if verdict.keep else frozenset()
        yield verdict
    for entry in sorted(found.store, key=lambda entry: entry.name):
        yield _entry(entry, kept, wanted, found.references.get("store", ()))


def _folder(folder: Folder, references: tuple[str, ...], wanted: frozenset[str], stored: frozenset[int]) -> Verdict:
    def verdict(keep: bool, reason: str) -> Verdict:
        return Verdict(folder.name, folder.size, keep, reason)

    whole = folder.name.removesuffix(".part")
    if not _OURS.match(whole) or not (folder.inodes & stored or whole != folder.name):
        return verdict(True, "it was not pushed from here")
    if references:
        more = f" and {len(references) - 2} more" if len(references) > 2 else ""
        return verdict(True, f"{', '.join(references[:2])}{more} refer{'s' * (len(references) == 1)} to it")
    if whole != folder.name:
        return verdict(False, "it was never finished")
    if whole in wanted:
        return verdict(True, "it is what would be pushed now")
    return verdict(False, "no link, service, record of a kept release or process refers to it")


def _entry(entry: Entry, kept: set[int], wanted: frozenset[str], references: tuple[str, ...]) -> Verdict:
    def verdict(keep: bool, reason: str) -> Verdict:
        return Verdict(f"store/{entry.name}", entry.size, keep, reason)

    if entry.inodes & kept:
        return verdict(True, "a model that stays has it")
    if entry.name in wanted:
        return verdict(True, "it is what would be pushed now")
    if entry.age < YOUNG:
        return verdict(True, f"it was written {entry.age / 3600:.0f} h ago: a push may go on")
    if references:
        return verdict(True, f"{references[0]} uses the store")
    return verdict(False, "no model that stays has it")


def _step(inventory: Inventory, transport: Transport, layout: Layout, verdict: Verdict) -> Step:
    path = f"{layout.models}/{verdict.path}"
    if verdict.keep:
        return Step("gc", f"keep {path} ({amount(verdict.size)})", verdict.reason)

    def action(progress: Progress) -> None:
        # Asked again under the lock: a push or a deployment may have come in between.
        now = {again.path: again for again in judge(survey(inventory, transport), _wanted(inventory, transport))}
        if (again := now.get(verdict.path)) and not again.keep:
            REMOTE.ask(transport, "remove", [path])
        else:
            progress.say(f"left alone: {again.reason if again else 'it is gone already'}")

    return Step("gc", f"remove {path} ({amount(verdict.size)})", verdict.reason, action)


def _wanted(inventory: Inventory, transport: Transport) -> frozenset[str]:
    """Folders and digests of what the laptop has now, as far as it has it, and of what the host fetches itself."""
    file, folder = inventory.drafter.file, inventory.target.push
    here = (
        drafter(inventory) if file and file.is_file() else None,
        target(inventory) if folder and folder.is_dir() else None,
    )
    names = {name for model in here if model for name in (model.identifier, *model.manifest.values())}
    for request in requests(inventory):
        if record := state.read(transport, Layout.of(inventory), request).record:
            names |= {file.sha256 for file in record.files if file.sha256}
            names |= {model.identifier} if (model := record.model(request)) else set()
    return frozenset(names)


def _texts(transport: Transport, layout: Layout) -> list[str]:
    """Where a model may be named: every unit and configuration, and the records of releases that are still there."""
    deployments = f"{layout.state}/deployments"
    command = (
        f"cd {shlex.quote(deployments)} 2>/dev/null || exit 0; "
        f'for d in *; do if [ ! -L "$d" ] && [ -e "$d/release" ]; then echo "$d"; fi; done'
    )
    kept = transport.run(command, sudo=True).stdout.split()
    active = [f"{deployments}/active/config"]
    return [
        *(f"{deployments}/{name}/config" for name in kept),
        *active,
        f"{layout.etc}/*.yaml",
        "/etc/systemd/system/*.service",
        "/etc/systemd/system/*.service.d/*.conf",
        "/run/systemd/transient/*.service",
    ]
