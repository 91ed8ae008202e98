"""A folder of many files to the host, as it is: wheels, for instance. Only what differs is sent."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from deployer.errors import TransferError
from deployer.plan.step import Progress
from deployer.push import digest, file, rsync, staged
from deployer.push.file import Sending
from deployer.transport.base import Transport
from deployer.transport.pct import PctTransport


def differs(transport: Transport, local: Path, remote: str) -> tuple[str, ...]:
    """Names in `local` whose SHA-256 on the host is another, or that are not there. No effect;
    extra files do not count.
    """
    names = [path.relative_to(local).as_posix() for path in sorted(local.rglob("*")) if path.is_file()]
    there = digest.there(transport, [f"{remote}/{name}" for name in names])
    return tuple(name for name in names if there.get(f"{remote}/{name}", (0, ""))[1] != digest.of_file(local / name))


def send_folder(transport: Transport, local: Path, remote: str, progress: Progress, *, sudo: bool = True) -> None:
    """Makes every file of `local` the same on the host, folders 0755 and files 0644. Raises TransferError."""
    names = differs(transport, local, remote)
    if not names:
        return
    transport.run(f"umask 022; mkdir -p {shlex.quote(remote)}", sudo=sudo)
    if isinstance(transport, PctTransport):
        _staged(transport, local, remote, names, progress)
    else:
        _send_names(transport, local, remote, names, progress)
    left = differs(transport, local, remote)
    if left:
        raise TransferError(
            f"{len(left)} files differ after sending: {', '.join(left[:3])}",
            where=f"{transport.name}:{remote}",
            remedy="run it again; if they change here meanwhile, wait until their writer is done",
        )


def _send_names(transport: Transport, local: Path, remote: str, names: tuple[str, ...], progress: Progress) -> None:
    if rsync.usable(transport):
        _by_rsync(transport, local, remote, names, progress)
        return
    for name in names:
        file.send(transport, _sending(local, remote, name), progress, by_ssh=False)


def _staged(transport: PctTransport, local: Path, remote: str, names: tuple[str, ...], progress: Progress) -> None:
    """All to the node in one go, where a broken-off one is continued; then one by one into the container."""
    stage = transport.stage("folder")
    transport.node.run(f"umask 077; mkdir -p {shlex.quote(stage)}", sudo=True)
    _send_names(transport.node, local, stage, names, progress)
    progress.say(f"pct push of {len(names)} files")
    for name in names:
        staged.bring(transport, f"{stage}/{name}", _sending(local, remote, name), progress)
    staged.clear(transport)


def _sending(local: Path, remote: str, name: str) -> Sending:
    return Sending(local / name, digest.of_file(local / name), f"{remote}/{name}")


def _by_rsync(transport: Transport, local: Path, remote: str, names: tuple[str, ...], progress: Progress) -> None:
    """One rsync for all; it writes temporary names, keeps broken-off ones in .rsync-part, and compares whole files."""
    total = sum((local / name).stat().st_size for name in names)
    with tempfile.NamedTemporaryFile("w", prefix="ddtree-files-") as listed:
        listed.write("\0".join(names))
        listed.flush()
        options = [
            "--checksum",
            "--partial-dir=.rsync-part",
            f"--files-from={listed.name}",
            "--from0",
            *rsync.mode_options(),
        ]
        rsync.send(transport, [f"{local}/"], f"{remote}/", options, total=total, progress=progress)
