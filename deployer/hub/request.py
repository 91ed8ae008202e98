"""What the host is to fetch from the hub, and the names under which that is known there."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass

from deployer.inventory.model import Hub, Inventory
from deployer.inventory.secret import Secret
from deployer.plan.layout import Layout
from deployer.push.model import target_slug

RUN = "/run"  # in memory: a token is on no disk
COMMIT = re.compile(r"^[0-9a-f]{40}$")


@dataclass(frozen=True)
class Request:
    """A model on the hub and its place on the host. `section` is the inventory's."""

    kind: str
    slug: str
    link: str
    hub: Hub
    section: str
    service: str

    @property
    def key(self) -> str:
        """Equal for equal requests: the second one finds what the first has begun."""
        said = f"{self.hub.endpoint} {self.hub.repo} {self.hub.revision} {self.kind}"
        return hashlib.sha256(said.encode()).hexdigest()[:12]

    @property
    def unit(self) -> str:
        return f"{self.service}-fetch-{self.key}.service"

    @property
    def pinned(self) -> bool:
        """Whether the inventory names a commit, which is always the same files."""
        return bool(COMMIT.match(self.hub.revision))

    @property
    def page(self) -> str:
        """Where a person looks at the model."""
        return f"{self.hub.endpoint}/{self.hub.repo}"

    def folder(self, layout: Layout) -> str:
        """Its record and its status on the host."""
        return f"{layout.state}/hub/{self.key}"

    def token(self) -> Secret | None:
        """Raises UsageError when the laptop has none where the inventory says so."""
        source = self.hub.token
        return source.read(f"[{self.section}] token", os.environ) if source else None

    def __str__(self) -> str:
        return f"{self.hub.repo} at {self.hub.revision}"


def requests(inventory: Inventory) -> tuple[Request, ...]:
    """Everything that the inventory leaves to the host."""
    target = inventory.target
    if target.hub is None:
        return ()
    return (Request("target", target_slug(inventory), target.path, target.hub, "target.hub", inventory.service),)
