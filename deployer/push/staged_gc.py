"""`gc` on the Proxmox host of a container without sshd: what pushes that broke off left staged there."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from deployer.plan.step import Progress, Step
from deployer.push.pace import amount
from deployer.transport.base import Transport
from deployer.transport.pct import PctTransport

YOUNG = 86_400.0  # seconds; a push may be continued tomorrow. Nothing writes or reads for that long: see pct.PUSH


@dataclass(frozen=True)
class Staged:
    """One thing in the container's stage: a file named by its digest (`name` may end in .part), or a folder of wheels.
    `size` in bytes; `age` in seconds since its last change.
    """

    name: str
    size: int
    age: float


@dataclass(frozen=True)
class Needs:
    """Digests: of what would be pushed now, and of what the container's models have."""

    wanted: frozenset[str]
    there: frozenset[str]


def steps(transport: Transport, needs: Callable[[], Needs]) -> tuple[Step, ...]:
    """One step for each thing that is staged for this container; none for a host that files reach directly. What other
    containers have there is theirs.
    """
    if not isinstance(transport, PctTransport):
        return ()
    found = survey(transport)
    known = needs() if found else Needs(frozenset(), frozenset())
    return tuple(_step(transport, staged, *judge(staged, known), needs) for staged in found)


def survey(transport: PctTransport) -> tuple[Staged, ...]:
    """Reads, no effect; sorted by name. By the time of change: a copy may have brought its source's other time."""
    folder = shlex.quote(transport.stage("").rstrip("/"))
    command = f"date +%s; find {folder} -mindepth 1 -printf '%C@ %s %y %P\\n' 2>/dev/null; true"
    now, *lines = transport.node.run(command, sudo=True, timeout=600.0).stdout.splitlines()
    return tuple(_grouped(lines, float(now)))


def _grouped(lines: list[str], now: float) -> Iterator[Staged]:
    sizes, changes = dict[str, int](), dict[str, float]()
    for line in lines:
        changed, size, kind, path = line.split(" ", 3)
        name = path.partition("/")[0]
        sizes[name] = sizes.get(name, 0) + (int(size) if kind == "f" else 0)
        changes[name] = max(changes.get(name, 0.0), float(changed))
    return (Staged(name, sizes[name], max(0.0, now - changes[name])) for name in sorted(sizes))


def judge(staged: Staged, needs: Needs) -> tuple[bool, str]:
    """Whether it stays, and why."""
    digest = staged.name.removesuffix(".part")
    if staged.age < YOUNG:
        return True, f"it was written {staged.age / 3600:.0f} h ago: a push may go on"
    if digest in needs.there:
        return False, "the container has it"
    if digest in needs.wanted:
        return True, "it is what would be pushed now, and is continued then"
    return False, f"no push has gone on with it for {staged.age / 86_400:.0f} days"


def _step(transport: PctTransport, staged: Staged, keep: bool, reason: str, needs: Callable[[], Needs]) -> Step:
    path = transport.stage(staged.name)
    title = f"{transport.node.name}:{path} ({amount(staged.size)})"
    if keep:
        return Step("gc", f"keep {title}", reason)

    def action(progress: Progress) -> None:
        # Asked again under the lock, as of the models.
        now = {again.name: judge(again, needs()) for again in survey(transport) if again.name == staged.name}
        stays, why = now.get(staged.name, (True, "it is gone already"))
        if stays:
            progress.say(f"left alone: {why}")
            return
        folder = transport.stage("").rstrip("/")
        tidy = f"rmdir {shlex.join([folder, folder.rpartition('/')[0]])} 2>/dev/null; true"  # only when empty
        transport.node.run(f"rm -rf {shlex.quote(path)} && {{ {tidy}; }}", sudo=True, timeout=600.0)

    return Step("gc", f"remove {title}", reason, action)
