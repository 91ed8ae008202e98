"""What `push` would do: which files are missing on the host, which folders and links."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from deployer.errors import PreflightError
from deployer.facts import disk
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.plan.step import Plan, Progress, Step
from deployer.push import digest, file, staged
from deployer.push.bundle import SMALL, loads, send_load
from deployer.push.file import Sending
from deployer.push.model import SUMS, Blob, Model, drafter, drafter_slug, target
from deployer.push.openssh import Way
from deployer.push.pace import Meter, amount
from deployer.transport.base import Transport

RESERVE = 256 << 20  # bytes that stay free
WORTHWHILE = 8 << 20  # bytes; below, a new ssh takes longer than the open channel


@dataclass(frozen=True)
class Found:
    """What the host has of one model. `stored` (digests) and `parts` (digest -> bytes that lie there as .part) are
    looked at only when the folder is not complete. `link` is "folder" for a real folder of the host's own: nothing of
    ours, so nothing that we may replace.
    """

    complete: bool
    stored: frozenset[str]
    parts: dict[str, int]
    link: str


@dataclass(frozen=True)
class Manner:
    """How files are sent: which way, and at how many MB/s at most."""

    way: Way
    limit: float | None

    def __str__(self) -> str:
        return self.way.why + (f", at most {self.limit:g} MB/s" if self.limit else "")


def plan(inventory: Inventory, transport: Transport, *, limit: float | None = None, verify: bool = False) -> Plan:
    """The steps that make drafter and target those of the laptop, sending `limit` MB/s at most. `verify`: the host reads
    every byte again, whatever it remembers.

    Raises PreflightError for a bad checkpoint or a full disk.
    """
    layout = Layout.of(inventory)
    links = {"drafter": f"{layout.models}/{drafter_slug(inventory)}", "target": inventory.target.path}
    models = [model for model in (drafter(inventory), target(inventory)) if model]
    looked = [
        (model, links[model.kind], look(transport, layout, model, links[model.kind], anew=verify)) for model in models
    ]
    missing = [(blob, found) for model, _, found in looked for blob in absent(model, found)]
    manner = Manner(staged.small_way(transport), limit)
    if missing:
        _check_room(transport, layout, missing)
        if any(blob.size >= WORTHWHILE for blob, _ in missing):
            manner = Manner(staged.way(transport), limit)
    steps = [step for looked_at in looked for step in steps_for(transport, layout, *looked_at, manner)]
    return Plan(transport.name, tuple(steps))


def look(transport: Transport, layout: Layout, model: Model, link: str, *, anew: bool = False) -> Found:
    """What is there, by SHA-256; no effect but on the host's memory of these. `anew`: every byte is read again."""
    wanted = {f"{model.folder(layout)}/{name}": sha for name, sha in model.manifest.items()}
    stored = places(layout, model)
    parts = {f"{path}.part": sha for sha, path in stored.items()}
    memory = "" if anew else layout.digests
    said = digest.helper(transport, "survey", [*wanted, *stored.values()], list(parts), link, memory, check=True).stdout
    answer = json.loads(said)
    seen = {path: digest.Seen(*found) for path, found in answer["files"].items()}
    folder = {path: found for path, found in seen.items() if path in wanted}
    if len(folder) == len(wanted) and digest.read(transport, folder, layout.digests) == wanted:
        return Found(True, frozenset(), {}, answer["link"])
    in_store = {path: found for path, found in seen.items() if path not in wanted}
    found = digest.read(transport, in_store, layout.digests)
    good = frozenset(sha for sha, path in stored.items() if found.get(path) == sha)
    left = {sha: answer["parts"][part] for part, sha in parts.items() if sha not in good and part in answer["parts"]}
    return Found(False, good, left, answer["link"])


def places(layout: Layout, model: Model) -> dict[str, str]:
    """Digest -> path in the host's store. Files of equal contents are stored once, under the first one's name."""
    found: dict[str, str] = {}
    for blob in model.blobs:
        found.setdefault(blob.sha256, f"{layout.store}/{blob.sha256}/{blob.name.rpartition('/')[2]}")
    return found


def absent(model: Model, found: Found) -> list[Blob]:
    """The files that have to be sent: each content once."""
    if found.complete:
        return []
    once = {blob.sha256: blob for blob in reversed(model.blobs)}
    return [blob for blob in model.blobs if blob is once[blob.sha256] and blob.sha256 not in found.stored]


def steps_for(
    transport: Transport, layout: Layout, model: Model, link: str, found: Found, manner: Manner
) -> list[Step]:
    """Send, publish, link: of one model."""
    refuse_folder(transport, link, found)
    return [
        _send_step(transport, layout, model, found, manner),
        publish_step(transport, layout, model, found),
        link_step(transport, layout, model, link, found),
    ]


def refuse_folder(transport: Transport, link: str, found: Found) -> None:
    """Raises PreflightError where a folder of the host's own lies in place of the link."""
    if found.link == "folder":
        raise PreflightError(
            f"{link} is a folder that was not pushed from here",
            where=transport.name,
            remedy="choose another target.path",
        )


def _send_step(transport: Transport, layout: Layout, model: Model, found: Found, manner: Manner) -> Step:
    missing = absent(model, found)
    size = amount(sum(blob.size for blob in model.blobs))
    title = f"send the {model.kind} {model.slug} ({len(model.blobs)} file{'s' * (len(model.blobs) > 1)}, {size})"
    if not missing:
        return Step("push", title, "nothing to send: the SHA-256 is equal on both ends")

    def action(progress: Progress) -> None:
        stored = places(layout, model)
        memory = layout.digests
        sendings = [Sending(b.source, b.sha256, stored[b.sha256], memory) for b in missing if b.source]
        _send_all(transport, sendings, progress, manner)

    parts = sum(found.parts.get(blob.sha256, 0) for blob in missing)
    reason = (
        f"{len(missing)} of {len(model.blobs)} are not in the host's store ({amount(sum(b.size for b in missing))}"
        f"{f', {amount(parts)} of it broken off and to be continued' if parts else ''}); {manner}"
    )
    return Step("push", title, reason, action)


def _send_all(transport: Transport, sendings: list[Sending], progress: Progress, manner: Manner) -> None:
    """Small files together, then the others one by one; their bytes are counted as one transfer."""
    meter, done = Meter(progress, total=sum(sending.size for sending in sendings)), 0
    for load in loads(sending for sending in sendings if sending.size < SMALL):
        meter.next_file(done)
        send_load(transport, load, meter, limit=manner.limit)
        done += sum(sending.size for sending in load)
    for sending in sendings:
        if sending.size >= SMALL:
            meter.next_file(done)
            by_ssh = manner.way.by_ssh and sending.size >= WORTHWHILE
            staged.send(transport, sending, meter, by_ssh=by_ssh, limit=manner.limit)
            done += sending.size
    staged.clear(transport)


def publish_step(transport: Transport, layout: Layout, model: Model, found: Found) -> Step:
    """The model's folder, made of what is in the store."""
    folder = model.folder(layout)
    title = f"publish {folder}"
    if found.complete:
        return Step("push", title, "it is complete, every file checked")

    def action(progress: Progress) -> None:
        stored = places(layout, model)
        files = [(blob.name, stored[blob.sha256]) for blob in model.blobs]
        texts = {name: text.decode() for name, text in model.texts.items()} | {SUMS: model.sums}
        result = digest.helper(transport, "assemble", folder, files, texts, layout.digests, check=False)
        file.check(transport, result, model.slug, folder, "publishing")

    made = f", {', '.join(model.texts)} made from header and profile" if model.texts else ""
    return Step("push", title, f"it is not there or not complete{made}", action)


def link_step(transport: Transport, layout: Layout, model: Model, link: str, found: Found) -> Step:
    """The name under which people know the model."""
    folder = model.folder(layout)
    title = f"point {link} there"
    if found.link == folder:
        return Step("push", title, "it does already")

    def action(progress: Progress) -> None:
        temporary = f"{link}.part"
        parent = link.rpartition("/")[0]
        command = (
            f"export LC_ALL=C; umask 022; mkdir -p {shlex.quote(parent)} && ln -sfn {shlex.join([folder, temporary])} "
            f"&& mv -fT {shlex.join([temporary, link])}"
        )
        file.check(transport, transport.run(command, sudo=True, check=False), model.slug, link, "linking")

    return Step("push", title, f"it points to {found.link}" if found.link else "there is no such link", action)


def _check_room(transport: Transport, layout: Layout, missing: list[tuple[Blob, Found]]) -> None:
    """Refuses before the first byte when it cannot fit. What lies there as .part is continued and needs no new room."""
    staged.check_room(transport, [(blob.sha256, blob.size) for blob, _ in missing if blob.size >= SMALL])
    room = disk.read(transport, layout.store)
    needed = sum(max(0, blob.size - found.parts.get(blob.sha256, 0)) for blob, found in missing) + RESERVE
    inodes = room.inodes_free is not None and room.inodes_free < 3 * len(missing) + 16
    if room.free < needed or inodes:
        raise PreflightError(
            f"not enough room for {amount(needed)} in {len(missing)} files: {room}",
            where=f"{transport.name}:{layout.models}",
            remedy=f"ddtree-deploy gc {transport.name}, or make room there, or set root to a larger file system",
        )
