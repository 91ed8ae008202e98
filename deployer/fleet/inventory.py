"""What a router's file may say, inventory/routers/NAME.toml: which host it is on, and whose boxes it sends requests to."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from deployer.errors import UsageError
from deployer.inventory.load import folders, validated
from deployer.inventory.load import load as load_box
from deployer.inventory.load import members as boxes_of
from deployer.inventory.model import Inventory, Notify, Pct, Section, Ssh
from deployer.inventory.network import Network, url
from deployer.inventory.paths import HostPath, Identifier, LaptopPath, SshWord
from deployer.inventory.values import Number, OptionValue, Program, Whole, require_sayable
from deployer.plan.layout import Layout

FOLDER = "routers"


class RouterInstall(Section):
    """Where vllm-router's wheels come from."""

    source: Literal["index", "wheelhouse"] = Field(
        default="index", description="the index that the host's pip knows, or wheels that the laptop has"
    )
    wheelhouse: LaptopPath | None = Field(default=None, description="folder of wheels on the laptop")
    python: Program = Field(default="python3", description="the host's Python that releases are made with")
    keep: Whole = Field(default=2, ge=1, description="the newest releases that stay; those in use stay too")

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.source == "wheelhouse" and self.wheelhouse is None:
            raise ValueError("source is wheelhouse, but no wheelhouse is named")
        return self


class RouterServe(Section):
    """The router's own side."""

    port: Whole = Field(default=30000, ge=1, le=65535, description="where it listens on its host")
    allow: tuple[Network, ...] = Field(
        default=(), description="who may connect, to its admin paths too; left out: the host's loopback only"
    )
    policy: Literal["round_robin", "cache_aware", "power_of_two", "consistent_hash", "random"] = Field(
        default="round_robin", description="how it chooses a box for a request"
    )
    options: dict[str, OptionValue] = Field(
        default_factory=dict, description="vllm-router's own, passed through by their names"
    )
    drain_timeout: Number = Field(
        default=600.0, gt=0, description="seconds that a box which was taken out has to finish its requests"
    )
    gate_timeout: Number = Field(
        default=120.0, gt=0, description="seconds until the router must send to all healthy boxes"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        require_sayable(self.options)
        return self


class Router(Section):
    """One router: its host, and the group whose boxes are behind it."""

    name: SshWord = Field(description="how reports and notifications call it")
    description: str = Field(default="", description="for its readers")
    group: Identifier = Field(description="its boxes: every host whose file names that group")
    root: HostPath = Field(
        default="/opt/ddtree-router", description="absolute folder on the host for releases and state"
    )
    service: Identifier = Field(default="ddtree-router", description="the systemd unit's name, without .service")
    user: Identifier = Field(default="ddtree-router", description="the account the router runs as; created if absent")
    ssh: Ssh
    pct: Pct | None = None
    install: RouterInstall = RouterInstall()
    serve: RouterServe = RouterServe()
    notify: Notify = Notify()

    @property
    def layout(self) -> Layout:
        return Layout(self.root, self.service, self.user)


def names() -> dict[str, Path]:
    """Every router that a bare name reaches, with its file."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted((folder / FOLDER).glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def load(name_or_path: str) -> Router:
    """A router by name or by its file's path. UsageError with the nearest name when there is none."""
    if name_or_path.endswith(".toml") and Path(name_or_path).is_file():
        return validated(Router, Path(name_or_path).resolve())
    known = names()
    if name_or_path in known:
        return validated(Router, known[name_or_path])
    near = get_close_matches(name_or_path, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known routers: {', '.join(known) or 'none'}"
    raise UsageError(f"no router is named {name_or_path!r}", where=f"inventory/{FOLDER}", remedy=hint)


def address_of(box: Inventory) -> str:
    """The URL under which routers know a box. UsageError when it is not on the network."""
    if box.serve.address is None:
        raise UsageError(
            f"{box.name} is on its own loopback: no router reaches it",
            where=f"inventory {box.name}",
            remedy="[serve] address = its own address, allow = [the router's]",
        )
    return url(box.serve.address, box.serve.port)


def boxes(router: Router) -> tuple[Inventory, ...]:
    """The boxes behind a router, by name."""
    return tuple(load_box(name) for name in boxes_of(router.group))


def in_front_of(box: Inventory) -> tuple[Router, ...]:
    """Every router that sends to a box. UsageError if any router's file cannot be read: who is left out would not be
    known.
    """
    found = (validated(Router, path) for path in names().values())
    return tuple(router for router in found if router.group in box.groups)
