"""check: is the host fit, and do the models fit each other?"""

from __future__ import annotations

from deployer.cli.display import show_findings
from deployer.cli.host import Host, HostName, reached
from deployer.errors import PreflightError
from deployer.facts.finding import failures
from deployer.facts.gather import gather
from deployer.facts.judge import judge


def check(host: HostName) -> None:
    """Looks at host, drafter and target; changes nothing. Exit code 3 if something must be mended first."""
    with reached(host) as reached_host:
        examine(reached_host)


def examine(host: Host) -> None:
    """Shows all findings. Raises PreflightError that names the failed ones."""
    findings = judge(gather(host.inventory, host.transport), host.inventory)
    show_findings(findings)
    failed = failures(findings)
    if failed:
        subjects = ", ".join(finding.subject for finding in failed)
        raise PreflightError(f"the host is not ready: {subjects}", where=host.transport.name, remedy="see above")
