"""What the Proxmox host of a container without sshd has to have: room for the largest file on its way in, and Python."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.facts import disk
from deployer.facts.finding import Finding, judged
from deployer.transport.base import Transport
from deployer.transport.pct import PctTransport

RESERVE = 256 << 20  # bytes that stay free there


def stage_findings(transport: Transport, drafter: int) -> Iterator[Finding]:
    """Nothing for a host that files reach directly. `drafter` is in bytes."""
    if not isinstance(transport, PctTransport):
        return
    folder, node = transport.stage(""), transport.node
    room = disk.read(node, folder)
    remedy = f"make room on {node.name}, or set [pct] stage to a folder of a larger file system"
    yield judged(room.free >= drafter + RESERVE, "stage", f"{node.name}:{folder.rstrip('/')}: {room}", remedy)
    version = node.run("python3 --version", check=False).stdout.strip()
    remedy = f"apt-get install python3 on {node.name}: it checks and continues what is staged there"
    yield judged(bool(version), "stage's python", version or f"none on {node.name}", remedy)
