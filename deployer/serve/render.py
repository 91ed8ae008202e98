"""The files of a deployment: unit, drop-in, vLLM's config, environment. Pure: inventory in, text out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from string import Template

from deployer.errors import UsageError
from deployer.install.source import project_path
from deployer.inventory.model import Inventory
from deployer.inventory.network import every_address
from deployer.inventory.secret import Secret, read_all
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
    """What a deployment writes, as text. `environment` may hold secrets: `text` is how it comes out."""

    unit: str
    dropin: str
    config: str
    environment: Secret

    def text(self, name: str) -> str:
        """What is written for one of the four."""
        value: str | Secret = getattr(self, name)
        return value.reveal() if isinstance(value, Secret) else value

    @property
    def digest(self) -> str:
        """Hex SHA-256 over all four: equal files are the same deployment."""
        texts = [self.text(field.name) for field in fields(self)]
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
    host: str = "127.0.0.1"

    @classmethod
    def of_service(cls, inventory: Inventory) -> Place:
        """The production service's own."""
        layout, serve = Layout.of(inventory), inventory.serve
        host = every_address(serve.address) if serve.address else cls.host
        return cls(layout.service, layout.service, layout.config, layout.environment, serve.port, host)


@dataclass(frozen=True)
class Engine:
    """What runs there: absolute folders on the host, how it decodes, and the settings of the unit that this host's
    systemd cannot carry out.
    """

    venv: str
    target: str
    drafter: str
    decoding: Decoding
    softer: tuple[str, ...] = ()


# What a setting is when it is switched off, where that is not `no`.
_OFF = {"ProcSubset": "all", "ProtectProc": "default", "BindReadOnlyPaths": ""}
_SOFTER = "# Softer: systemd on this host cannot carry these out (226/NAMESPACE, as in a container without nesting)."


def render(
    inventory: Inventory,
    place: Place,
    engine: Engine,
    nodes: tuple[str, ...] = (),
    secrets: Mapping[str, Secret] | None = None,
) -> Files:
    """All files of one engine. `nodes` are the host's NVIDIA device nodes, `secrets` what [serve.secrets] names."""
    options = engine_options(
        inventory, engine.decoding, target=engine.target, drafter=engine.drafter, port=place.port, host=place.host
    )
    return Files(
        unit=_unit(inventory, place, engine, options["shutdown-timeout"]),
        dropin=_dropin(inventory, nodes, str(options["host"])) + _softening(engine.softer, _hidden(engine)),
        config=as_yaml(options),
        environment=environment_file(inventory.serve.environment, secrets or {}),
    )


def _unit(inventory: Inventory, place: Place, engine: Engine, drain: int) -> str:
    hidden = _hidden(engine)
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


def _hidden(engine: Engine) -> list[str]:
    """The models that the unit's own view would not show."""
    return [path for path in (engine.target, engine.drafter) if path.startswith(_HIDDEN)]


def _softening(softer: tuple[str, ...], hidden: list[str]) -> str:
    """The end of the drop-in: what comes last holds."""
    if not softer:
        return ""
    # Nothing can be bound into a view that cannot be made: then nothing may hide the models either.
    off = dict.fromkeys([*softer, *(["ProtectHome", "PrivateTmp", "BindReadOnlyPaths"] if hidden else [])])
    lines = [f"{key}={_OFF.get(key, 'no')}" for key in off]
    if "PrivateDevices" in off:
        lines.append("DevicePolicy=closed")  # what it kept away, the cgroup still does
    return "\n[Service]\n" + "\n".join([_SOFTER, *lines]) + "\n"


def _dropin(inventory: Inventory, nodes: tuple[str, ...], host: str) -> str:
    build = Template(project_path("systemd", f"{inventory.install.build}.conf").read_text(encoding="utf-8"))
    text = build.substitute(
        start_interval=max(2400, math.ceil(3 * inventory.serve.gate_timeout)),
        devices="\n".join(f"DeviceAllow={node} rw" for node in nodes),
    )
    if host.startswith(_LOOPBACK):
        return f"{text}\n{project_path('systemd', 'loopback.conf').read_text(encoding='utf-8')}"
    if inventory.serve.address is None:  # [serve.options] host: somebody else guards it
        return text
    return f"{text}\n{network_dropin((inventory.serve.address, *inventory.serve.allow))}"


def network_dropin(allowed: Iterable[str]) -> str:
    """The part of a drop-in that lets in these addresses and networks, and the host's loopback."""
    template = Template(project_path("systemd", "network.conf").read_text(encoding="utf-8"))
    return template.substitute(allowed=" ".join(allowed))


def local_secrets(inventory: Inventory) -> dict[str, Secret]:
    """What [serve.secrets] names, read on this machine."""
    return read_all(inventory.serve.secrets, "serve.secrets")


def environment_file(variables: Mapping[str, str], secrets: Mapping[str, Secret]) -> Secret:
    """systemd's EnvironmentFile, as a whole a secret."""
    values: dict[str, str | Secret] = {**variables, **secrets}
    lines = []
    for name, value in sorted(values.items()):
        if not name.replace("_", "a").isalnum() or name[0].isdigit():
            raise UsageError(
                f"[serve.environment] {name} is no name of a variable",
                where="[serve.environment]",
                remedy="letters, digits and underscores, the first no digit",
            )
        text = value.reveal() if isinstance(value, Secret) else value
        if "\n" in text:
            raise UsageError(
                f"[serve.environment] {name} has more than one line",
                where="[serve.environment]",
                remedy="write it in one line: systemd reads one variable per line",
            )
        quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
        lines.append(f'{name}="{quoted}"\n')
    return Secret("".join(lines))
