"""What the host is to fetch from the hub, and the names under which that is known there."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass

from deployer.checkpoint import profiles
from deployer.checkpoint.config import as_json, config_of
from deployer.checkpoint.profiles import Profile
from deployer.inventory.model import Hub, Inventory
from deployer.inventory.secret import Secret
from deployer.plan.layout import Layout
from deployer.push.model import WEIGHTS, drafter_slug, target_slug

RUN = "/run"  # in memory: a token is on no disk
COMMIT = re.compile(r"^[0-9a-f]{40}$")


@dataclass(frozen=True)
class Request:
    """A model on the hub and its place on the host. `section` is the inventory's; `profile` is a drafter's, which is
    fetched as the bare checkpoint that a pushed one is.
    """

    kind: str
    slug: str
    link: str
    hub: Hub
    section: str
    service: str
    profile: Profile | None = None

    @property
    def only(self) -> tuple[str, ...]:
        """The files to fetch; all that belong to the model if empty."""
        return (WEIGHTS,) if self.profile else ()

    @property
    def texts(self) -> dict[str, bytes]:
        """What is made here and lies beside the fetched files: of a drafter the same config.json as of a pushed one."""
        return {"config.json": as_json(config_of(self.profile))} if self.profile else {}

    @property
    def otherwise(self) -> str:
        """How the same model comes from the laptop."""
        return (
            "fetch the file here and name it: [drafter] file"
            if self.profile
            else ("fetch the model here and name its folder: [target] push")
        )

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
    """Everything that the inventory leaves to the host. Raises UsageError for a bad profile."""
    return tuple(request for request in (_drafter(inventory), _target(inventory)) if request)


def request(inventory: Inventory, kind: str) -> Request | None:
    """The one for its drafter or its target, if it leaves that to the host."""
    return next((found for found in requests(inventory) if found.kind == kind), None)


def _drafter(inventory: Inventory) -> Request | None:
    drafter, slug, service = inventory.drafter, drafter_slug(inventory), inventory.service
    if drafter.hub is None:
        return None
    link, profile = f"{Layout.of(inventory).models}/{slug}", profiles.load(drafter.profile)
    return Request("drafter", slug, link, drafter.hub, "drafter.hub", service, profile)


def _target(inventory: Inventory) -> Request | None:
    target = inventory.target
    if target.hub is None:
        return None
    return Request("target", target_slug(inventory), target.path, target.hub, "target.hub", inventory.service)
