"""What `push` would do: which files are missing on the host, which folders and links."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from deployer.errors import PreflightError
from deployer.facts import disk
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.plan.step import Plan, Progress, Step
from deployer.push import digest, rsync
from deployer.push.file import Sending, send
from deployer.push.model import Blob, Model, drafter, drafter_slug, target
from deployer.transport.base import Transport

RESERVE = 256 << 20  # bytes that stay free
SMALL = 8 << 20  # bytes; below, a new ssh for rsync takes longer than the open channel


@dataclass(frozen=True)
class Found:
    """What the host has of one model. `stored` is looked at only when the folder is not complete."""

    complete: bool
    stored: frozenset[str]
    link: str


def plan(inventory: Inventory, transport: Transport) -> Plan:
    """The steps that make drafter and target those of the laptop.

    Raises PreflightError for a bad checkpoint or a full disk.
    """
    layout = Layout.of(inventory)
    models = [(drafter(inventory), f"{layout.models}/{drafter_slug(inventory)}")]
    pushed_target = target(inventory)
    if pushed_target:
        models.append((pushed_target, inventory.target.path))
    looked = [(model, link, look(transport, layout, model, link)) for model, link in models]
    missing = [blob for model, _, found in looked for blob in absent(model, found)]
    if missing:
        _check_room(transport, layout, missing)
    steps = [step for model, link, found in looked for step in steps_for(transport, layout, model, link, found)]
    return Plan(transport.name, tuple(steps))


def look(transport: Transport, layout: Layout, model: Model, link: str) -> Found:
    """Reads and hashes what is there; no effect."""
    folder = model.folder(layout)
    wanted = {f"{folder}/{name}": sha for name, sha in model.manifest.items()}
    there = digest.there(transport, list(wanted))
    complete = all(path in there and there[path][1] == sha for path, sha in wanted.items())
    stored = {} if complete else digest.there(transport, [_stored(layout, blob) for blob in model.blobs])
    good = frozenset(b.sha256 for b in model.blobs if stored.get(_stored(layout, b), (0, ""))[1] == b.sha256)
    # "folder" is a real folder of the host's own: nothing of ours, so nothing that we may replace.
    command = f"l={shlex.quote(link)}; readlink $l || if test -e $l; then echo folder; fi"
    return Found(complete=complete, stored=good, link=transport.run(command, sudo=True, check=False).stdout.strip())


def absent(model: Model, found: Found) -> list[Blob]:
    """The files that have to be sent."""
    return [] if found.complete else [blob for blob in model.blobs if blob.sha256 not in found.stored]


def steps_for(transport: Transport, layout: Layout, model: Model, link: str, found: Found) -> list[Step]:
    """Send, publish, link: of one model."""
    if found.link == "folder":
        raise PreflightError(
            f"{link} is a folder that was not pushed from here",
            where=transport.name,
            remedy="choose another target.path",
        )
    return [
        _send_step(transport, layout, model, found),
        _publish_step(transport, layout, model, found),
        _link_step(transport, layout, model, link, found),
    ]


def _send_step(transport: Transport, layout: Layout, model: Model, found: Found) -> Step:
    missing = absent(model, found)
    size = _amount(sum(blob.size for blob in model.blobs))
    title = f"send the {model.kind} {model.slug} ({len(model.blobs)} file{'s' * (len(model.blobs) > 1)}, {size})"
    if not missing:
        return Step("push", title, "nothing to send: the SHA-256 is equal on both ends")

    def action(progress: Progress) -> None:
        worthwhile = any(blob.size >= SMALL for blob in missing) and rsync.usable(transport)
        for blob in missing:
            sending = Sending(blob.source, blob.sha256, _stored(layout, blob))
            send(transport, sending, progress, by_rsync=worthwhile and blob.size >= SMALL)

    reason = (
        f"{len(missing)} of {len(model.blobs)} are not in the host's store ({_amount(sum(b.size for b in missing))})"
    )
    return Step("push", title, reason, action)


def _publish_step(transport: Transport, layout: Layout, model: Model, found: Found) -> Step:
    folder = model.folder(layout)
    title = f"publish {folder}"
    if found.complete:
        return Step("push", title, "it is complete, every file checked")

    def action(progress: Progress) -> None:
        temporary = f"{folder}.part"
        names = [*model.manifest, "x"]
        parents = sorted({f"{temporary}/{name}".rpartition("/")[0] for name in names})
        links = [
            f"ln {shlex.quote(_stored(layout, blob))} {shlex.quote(f'{temporary}/{blob.name}')}" for blob in model.blobs
        ]
        transport.run(
            f"set -e; umask 022; rm -rf {shlex.quote(temporary)}; mkdir -p {shlex.join(parents)}\n" + "\n".join(links),
            sudo=True,
        )
        for name, text in model.texts.items():
            transport.write(text, f"{temporary}/{name}", sudo=True)
        transport.run(f"rm -rf {shlex.quote(folder)} && mv -T {shlex.join([temporary, folder])} && sync", sudo=True)

    made = f", {', '.join(model.texts)} made from header and profile" if model.texts else ""
    return Step("push", title, f"it is not there or not complete{made}", action)


def _link_step(transport: Transport, layout: Layout, model: Model, link: str, found: Found) -> Step:
    folder = model.folder(layout)
    title = f"point {link} there"
    if found.link == folder:
        return Step("push", title, "it does already")

    def action(progress: Progress) -> None:
        temporary = f"{link}.part"
        parent = link.rpartition("/")[0]
        transport.run(
            f"umask 022; mkdir -p {shlex.quote(parent)} && ln -sfn {shlex.join([folder, temporary])} && "
            f"mv -fT {shlex.join([temporary, link])}",
            sudo=True,
        )

    return Step("push", title, f"it points to {found.link}" if found.link else "there is no such link", action)


def _check_room(transport: Transport, layout: Layout, missing: list[Blob]) -> None:
    """Refuses before the first byte when it cannot fit; what lies there as .part counts as still to come."""
    room, needed = disk.read(transport, layout.store), sum(blob.size for blob in missing) + RESERVE
    inodes = room.inodes_free is not None and room.inodes_free < 2 * len(missing) + 16
    if room.free < needed or inodes:
        raise PreflightError(
            f"not enough room for {_amount(needed)} in {len(missing)} files: {room}",
            where=f"{transport.name}:{layout.models}",
            remedy="make room there, or set root to a larger file system",
        )


def _stored(layout: Layout, blob: Blob) -> str:
    return f"{layout.store}/{blob.sha256}/{blob.name.rpartition('/')[2]}"


def _amount(size: int) -> str:
    """Bytes for people, in powers of ten as disks are sold."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size} bytes"
