"""The account that the service runs as: a system account without a shell, made once."""

from __future__ import annotations

from shlex import quote

from deployer.plan.layout import Layout
from deployer.plan.step import Progress, Step
from deployer.transport.base import Transport


def step(layout: Layout, transport: Transport) -> Step:
    """Makes the account, unless it is there."""
    if transport.run(f"id -u {quote(layout.user)}", check=False).ok:
        return Step("serve", "account", f"{layout.user} exists")

    def create(progress: Progress) -> None:
        options = (
            f"--system --user-group --no-create-home --home-dir {quote(layout.state_dir)} --shell /usr/sbin/nologin"
        )
        transport.run(f"PATH=$PATH:/usr/sbin useradd {options} {quote(layout.user)}", sudo=True)

    return Step("serve", "account", f"{layout.user} does not exist", create)
