"""check: is the host fit, and do the models fit each other?"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from deployer.cli.display import show_findings
from deployer.cli.host import Host, HostName, choices, reached
from deployer.errors import DeployError, PreflightError
from deployer.facts import proxmox
from deployer.facts.finding import Finding, failures
from deployer.facts.gather import Facts, gather
from deployer.facts.judge import judge
from deployer.facts.judge_proxmox import proxmox_findings
from deployer.facts.stage import stage_findings
from deployer.inventory.model import Inventory
from deployer.transport import jumps


def check(host: HostName) -> None:
    """Looks at host, drafter and target; changes nothing. Exit code 3 if something must be mended first.

    Examples:
        ddtree-deploy check ct129
        ddtree-deploy check --group production --parallel 8
    """
    from deployer.serve import sound

    with reached(host, sound.service) as reached_host:
        examine(reached_host)


def examine(host: Host) -> None:
    """Shows all findings. Raises PreflightError that names the failed ones."""
    findings = everything(host)
    show_findings(findings)
    refuse(findings, host.transport.name)


def everything(host: Host) -> tuple[Finding, ...]:
    """All findings about the box, and about the Proxmox host under it."""
    facts = gather(host.inventory, host.transport)
    staging = stage_findings(host.transport, facts.drafter.size)
    return (*judge(facts, host.inventory), *staging, *_beneath(host.inventory, facts))


def refuse(findings: Iterable[Finding], where: str) -> None:
    """Raises PreflightError that names the failed ones, if any."""
    failed = failures(findings)
    if failed:
        subjects = ", ".join(dict.fromkeys(finding.subject for finding in failed))
        raise PreflightError(f"the host is not ready: {subjects}", where=where, remedy="see above")


def _beneath(inventory: Inventory, facts: Facts) -> tuple[Finding, ...]:
    """The Proxmox host of a box with GPUs, or of one that is reached by pct, where it is the last machine before it; a
    silent one is the doctor's to explain.
    """
    if not (inventory.checks.gpus or inventory.pct) or choices.local:
        return ()
    with suppress(DeployError):
        before = len(jumps.jumps(inventory))
        if before:
            with jumps.reached(inventory.ssh, before - 1) as transport:
                return tuple(proxmox_findings(proxmox.read(transport), facts.host, inventory))
    return ()
