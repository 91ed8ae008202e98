"""doctor: everything on the way, from this machine over each jump host to the box."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.cli.check import refuse
from deployer.cli.display import out, show_findings
from deployer.cli.host import HostName, choices
from deployer.errors import DeployError
from deployer.facts import laptop, proxmox
from deployer.facts.finding import Finding, Level
from deployer.facts.gather import gather
from deployer.facts.judge import judge
from deployer.facts.judge_laptop import laptop_findings
from deployer.facts.judge_proxmox import proxmox_findings
from deployer.facts.proxmox import Proxmox
from deployer.facts.stage import stage_findings
from deployer.inventory.load import load
from deployer.inventory.model import Inventory
from deployer.transport import jumps
from deployer.transport.open import opened
from deployer.transport.resolve import Hop, resolve

Section = tuple[str, tuple[Finding, ...]]


def doctor(host: HostName) -> None:
    """check, and the same of this machine and of each jump host; changes nothing. Exit code 3 if something must be
    mended.

    Examples:
        ddtree-deploy doctor ct129
        ddtree-deploy doctor ct129 --json
    """
    inventory = load(host)
    findings: list[Finding] = []
    for title, seen in visits(inventory):
        out.print(f"{title}:", markup=False)
        show_findings(seen, machine=title)
        findings += seen
    refuse(findings, inventory.name)


def visits(inventory: Inventory) -> Iterator[Section]:
    """One section per machine, each as soon as it is known. A hop that fails ends it, and hides nothing before it."""
    try:
        hops = () if choices.local else resolve(inventory.ssh)
    except DeployError as error:
        here = laptop_findings(laptop.read(inventory, ()), inventory)
        yield "this machine", (*here, *_unsound(inventory), _failed("way", error))
        return
    yield "this machine", (*laptop_findings(laptop.read(inventory, hops), inventory), *_unsound(inventory))
    beneath: list[Proxmox] = []
    before = hops if inventory.pct else hops[:-1]
    for number, hop in enumerate(before):
        finding, seen = _jump(inventory, number, hop)
        yield f"jump host {hop}", (finding,)
        if seen is None:
            return
        beneath.append(seen)
    yield f"box {_box_name(inventory, hops)}", _box(inventory, beneath)


def _unsound(inventory: Inventory) -> tuple[Finding, ...]:
    """What `serve` would refuse before it asks the host: here it hides nothing that comes after."""
    from deployer.serve import sound

    try:
        sound.service(inventory)
    except DeployError as error:
        return (_failed("inventory", error),)
    return ()


def _jump(inventory: Inventory, number: int, hop: Hop) -> tuple[Finding, Proxmox | None]:
    """What a jump host knows; None when it is not reached. One that lets nobody run commands is no obstacle."""
    try:
        with jumps.reached(inventory.ssh, number) as transport:
            try:
                seen = proxmox.read(transport)
            except DeployError as error:
                remedy = "its findings are missing here; allow your account a shell there if it is the Proxmox host"
                return Finding(Level.WARN, "reach", f"it takes no commands: {error.what}", remedy), Proxmox(hop.alias)
            return Finding(Level.OK, "reach", f"{seen.name}, {seen.version or 'no Proxmox host'}"), seen
    except DeployError as error:
        return _failed("reach", error), None


def _box_name(inventory: Inventory, hops: tuple[Hop, ...]) -> str:
    if inventory.pct:
        return f"container {inventory.pct.vmid} on {hops[-1].alias if hops else 'this machine'}"
    return str(hops[-1] if hops else inventory.name)


def _box(inventory: Inventory, beneath: list[Proxmox]) -> tuple[Finding, ...]:
    """check's findings, and what the Proxmox hosts on the way say of this container."""
    try:
        with opened(inventory, local=choices.local) as transport:
            facts = gather(inventory, transport)
            staging = tuple(stage_findings(transport, facts.drafter.size))
    except DeployError as error:
        return (_failed("reach", error),)
    below = (finding for seen in beneath for finding in proxmox_findings(seen, facts.host, inventory))
    return (*judge(facts, inventory), *staging, *below)


def _failed(subject: str, error: DeployError) -> Finding:
    where = f" ({error.where})" if error.where else ""
    return Finding(
        Level.FAIL, subject, f"{error.what}{where}", error.remedy or "repeat it; what was said names the place"
    )
