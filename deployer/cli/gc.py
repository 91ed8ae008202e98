"""gc: room on the host."""

from __future__ import annotations

from deployer.cli.host import HostName, PlanOnly, carry_out


def gc(host: HostName, plan: PlanOnly = False) -> None:
    """Removes pushed models that no link, service, kept release or process refers to, and what pushes into a container
    left on its Proxmox host; --plan says which, and why.

    Examples:
        ddtree-deploy gc ct129 --plan
        ddtree-deploy gc ct129
    """
    from deployer.push.gc import plan as build

    carry_out(host, "gc", build, plan_only=plan)
