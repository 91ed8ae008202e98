"""The files of a deployment: unit, drop-in, vLLM's config, environment. Pure: inventory in, text out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from string import Template

from deployer.errors import UsageError
from deployer.install.source import project_path
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.serve.decoding import Decoding
from deployer.serve.options import DRAIN_SECONDS, as_yaml, engine_options

_LOOPBACK = ("127.", "localhost", "::1")
# The unit's own /tmp and /home hide what lies there on the host.
_HOMES = ("/home/", "/root/", "/run/user/")
_HIDDEN = (*_HOMES, "/tmp/", "/var/tmp/")
_STOP_MARGIN = 15


@dataclass(frozen=True)
class Files:
    """What a deployment writes, as text. `environment` may hold secrets and is never shown."""

    unit: str
    dropin: str
    config: str
    environment: str

    @property
    def digest(self) -> str:
        """Hex SHA-256 over all four: equal files are the same deployment."""
        texts = [getattr(self, field.name) for field in fields(self)]
        return hashlib.sha256("\0".join(texts).encode()).hexdigest()

    def __repr__(self) -> str:
        return f"Files({self.digest[:12]})"


@dataclass(frozen=True)
class Place:
    """Where an engine runs: names and paths that differ between the service and a bench arm beside it."""

    service: str
    cache: str
    config: str
    environment: str
    port: int

    @classmethod
    def of_service(cls, inventory: Inventory) -> Place:
        """The production service's own."""
        layout = Layout.of(inventory)
        return cls(layout.service, layout.service, layout.config, layout.environment, inventory.serve.port)


@dataclass(frozen=True)
class Engine:
    """What runs there: absolute folders on the host, and how it decodes."""

    venv: str
    target: str
    drafter: str
    decoding: Decoding


def render(
    inventory: Inventory,
    place: Place,
    engine: Engine,
    nodes: tuple[str, ...] = (),
    local: Mapping[str, str] | None = None,
) -> Files:
    """All files of one engine. `nodes` are the host's NVIDIA device nodes, `local` the laptop's environment."""
    options = engine_options(inventory, engine.decoding, target=engine.target, drafter=engine.drafter, port=place.port)
    return Files(
        unit=_unit(inventory, place, engine, int(options["shutdown-timeout"])),
        dropin=_dropin(inventory, nodes, str(options["host"])),
        config=as_yaml(options),
        environment=environment_file(inventory.serve.environment, local or {}),
    )


def _unit(inventory: Inventory, place: Place, engine: Engine, drain: int) -> str:
    hidden = [path for path in (engine.target, engine.drafter) if path.startswith(_HIDDEN)]
    return Template(project_path("systemd", "ddtree-vllm.service").read_text(encoding="utf-8")).substitute(
        service=place.service,
        cache=place.cache,
        user=inventory.user,
        config=place.config,
        environment=place.environment,
        venv=engine.venv,
        stop_seconds=(drain or DRAIN_SECONDS) + _STOP_MARGIN,
        # tmpfs leaves room for a bind mount, yes does not.
        home="tmpfs" if any(path.startswith(_HOMES) for path in hidden) else "yes",
        paths="".join(f"BindReadOnlyPaths={path}\n" for path in hidden),
    )


def _dropin(inventory: Inventory, nodes: tuple[str, ...], host: str) -> str:
    build = Template(project_path("systemd", f"{inventory.install.build}.conf").read_text(encoding="utf-8"))
    text = build.substitute(
        start_interval=max(2400, math.ceil(3 * inventory.serve.gate_timeout)),
        devices="\n".join(f"DeviceAllow={node} rw" for node in nodes),
    )
    loopback = project_path("systemd", "loopback.conf").read_text(encoding="utf-8")
    return text + ("\n" + loopback if host.startswith(_LOOPBACK) else "")


def environment_file(variables: Mapping[str, str], local: Mapping[str, str]) -> str:
    """systemd's EnvironmentFile. A value `$NAME` comes from the laptop's environment: no secret is in an inventory."""
    lines = []
    for name, value in sorted(variables.items()):
        if not name.replace("_", "a").isalnum() or name[0].isdigit():
            raise UsageError(f"[serve.environment] {name} is no name of a variable")
        text = _local(value[1:], local) if value.startswith("$") else value
        if "\n" in text:
            raise UsageError(f"[serve.environment] {name} has more than one line")
        quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
        lines.append(f'{name}="{quoted}"\n')
    return "".join(lines)


def _local(name: str, local: Mapping[str, str]) -> str:
    if name not in local:
        raise UsageError(
            f"[serve.environment] asks for ${name}, which is not set on this machine",
            remedy=f"export {name} and repeat",
        )
    return local[name]
