"""install: vLLM and the extension, as a release."""

from __future__ import annotations

from deployer.cli.host import HostName, PlanOnly, carry_out


def install(host: HostName, plan: PlanOnly = False) -> None:
    """Installs the pinned vLLM and ddtree_ext as a new release and makes it current.

    Examples:
        ddtree-deploy install ct129 --plan
        ddtree-deploy install ct129
    """
    from deployer.install.plan import plan as build

    carry_out(host, "install", build, plan_only=plan)
