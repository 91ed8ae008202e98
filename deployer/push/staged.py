"""Files into a container without sshd: first to its Proxmox host, where a broken line is continued, then by `pct push`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from deployer.errors import PreflightError
from deployer.facts import disk
from deployer.facts.stage import RESERVE
from deployer.plan.step import Progress
from deployer.push import digest, file, openssh
from deployer.push.file import Sending
from deployer.push.openssh import Way
from deployer.push.pace import amount
from deployer.push.patience import Patience, attempts
from deployer.transport.base import Transport
from deployer.transport.pct import PctTransport


def way(transport: Transport) -> Way:
    """How files go to this host: openssh.way, to the node where they are staged on one."""
    if not isinstance(transport, PctTransport):
        return openssh.way(transport)
    found, node = openssh.way(transport.node), transport.node.name
    return Way(found.by_ssh, f"staged on {node} ({found.why}), then pct push into container {transport.vmid}")


def small_way(transport: Transport) -> Way:
    """The same of small files, which go together in few streams."""
    if isinstance(transport, PctTransport):
        return Way(False, f"over {transport.node.name}, by pct push into container {transport.vmid}")
    return Way(False, "over the open connection")


def send(
    transport: Transport, sending: Sending, progress: Progress, *, by_ssh: bool, limit: float | None = None
) -> None:
    """file.send, by way of the node where there is one; its stage continues where it broke off."""
    if not isinstance(transport, PctTransport):
        file.send(transport, sending, progress, by_ssh=by_ssh, limit=limit)
        return
    stage = transport.stage(sending.sha256)
    _guard(transport)
    if digest.there(transport.node, [stage]).get(stage, (0, ""))[1] != sending.sha256:
        onto = Sending(sending.source, sending.sha256, stage)
        file.send(transport.node, onto, progress, by_ssh=by_ssh, limit=limit)
    progress.say(f"pct push of {sending.source.name}, {amount(sending.size)}")
    bring(transport, stage, sending, progress)
    transport.node.run(f"rm -f {shlex.quote(stage)}", sudo=True)


def bring(transport: PctTransport, stage: str, sending: Sending, progress: Progress) -> None:
    """From the node into the container, checked there by SHA-256, and only then named. Raises TransferError."""
    patience, name = Patience(), sending.source.name
    folder, part = shlex.quote(sending.remote.rpartition("/")[0]), shlex.quote(sending.part)
    for attempt in attempts(transport, patience, progress):
        with attempt:
            # Removed, not overwritten: an older `pct push`, cut off and not yet dead, then writes to no name at all.
            made = transport.run(f"export LC_ALL=C; umask 022; mkdir -p {folder} && rm -f {part}", check=False)
            file.check(transport, made, name, sending.part, "making its folder")
            file.check(transport, transport.bring(stage, sending.part), name, sending.part, "pct push")
            file.publish(transport, sending)


def clear(transport: Transport) -> None:
    """Everything is in the container: nothing stays on the node, nor what an earlier, given up push left there."""
    if isinstance(transport, PctTransport):
        folder = transport.stage("")
        tidy = f"rm -rf {shlex.quote(folder)}; rmdir {shlex.quote(folder.rstrip('/').rpartition('/')[0])} 2>/dev/null"
        transport.node.run(f"{tidy}; true", sudo=True, timeout=600.0)


def check_room(transport: Transport, files: Sequence[tuple[str, int]]) -> None:
    """Refuses before the first byte when the node has no room for the largest of `files` (SHA-256, bytes): they are
    staged one after the other. What lies there already needs no new room.
    """
    if not isinstance(transport, PctTransport):
        return
    paths = shlex.join(path for sha, _ in files for path in (transport.stage(sha), f"{transport.stage(sha)}.part"))
    listed = transport.node.run(f"stat -c '%s %n' {paths} 2>/dev/null; true", sudo=True).stdout.splitlines()
    there = {line.partition(" ")[2].rpartition("/")[2].removesuffix(".part"): int(line.split()[0]) for line in listed}
    needed = max((size - there.get(sha, 0) for sha, size in files), default=0) + RESERVE
    room = disk.read(transport.node, transport.stage(""))
    if room.free < needed:
        raise PreflightError(
            f"not enough room for {amount(needed)} on the Proxmox host, where a file waits for pct push: {room}",
            where=f"{transport.node.name}:{transport.stage('')}",
            remedy="make room there, or set [pct] stage to a folder of a larger file system",
        )


def _guard(transport: PctTransport) -> None:
    """The stage is root's alone."""
    folder = shlex.quote(transport.stage(""))
    transport.node.run(f"umask 077; mkdir -p {folder}", sudo=True)
