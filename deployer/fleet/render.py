"""The router's unit and drop-in. Pure: inventory in, text out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

from deployer.errors import UsageError
from deployer.fleet.inventory import Router
from deployer.install.source import project_path
from deployer.inventory.given import normalised
from deployer.inventory.network import every_address
from deployer.plan.layout import Layout
from deployer.serve.render import network_dropin

PROMETHEUS_PORT = 29000
_STOP_MARGIN = 15
_LONGEST_STOP = 600  # seconds; what stops a unit waits little longer
# With the router's own defaults a box that stops is asked for 60 s more and then left out for 60 s: two boxes that are
# upgraded within that time leave none. docs/fleet.md has what was measured.
_PATIENT: Mapping[str, int] = {
    "health-check-interval-secs": 1,
    "health-failure-threshold": 2,
    "health-success-threshold": 1,
    "worker-startup-check-interval": 1,
    "cb-timeout-duration-secs": 5,
    "retry-max-retries": 10,
    "retry-initial-backoff-ms": 200,
    "retry-max-backoff-ms": 5000,
    "prometheus-port": PROMETHEUS_PORT,
}
_DECIDED = {
    "host": "[serve] allow",
    "port": "[serve] port",
    "worker-urls": "group",
    "policy": "[serve] policy",
    "api-key": "nothing: clients send the boxes' key themselves, and a command line is no place for one",
}


@dataclass(frozen=True)
class Files:
    """What is written, as text."""

    unit: str
    dropin: str

    def placed(self, layout: Layout) -> dict[str, str]:
        """Path on the host -> text."""
        return {layout.unit_file: self.unit, f"{layout.unit_file}.d/10-network.conf": self.dropin}

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.unit}\0{self.dropin}".encode()).hexdigest()


def render(router: Router, venv: str, workers: Mapping[str, str]) -> Files:
    """The files of a router whose workers are at these URLs; the values are their addresses, which the unit lets in."""
    template = Template(project_path("systemd", "ddtree-router.service").read_text(encoding="utf-8"))
    unit = template.substitute(
        group=router.group,
        service=router.service,
        user=router.user,
        venv=venv,
        arguments=" ".join(_quoted(word) for word in arguments(router, tuple(workers))),
        stop_seconds=min(round(router.serve.drain_timeout), _LONGEST_STOP) + _STOP_MARGIN,
    )
    return Files(unit, network_dropin((*workers.values(), *router.serve.allow)))


def arguments(router: Router, urls: tuple[str, ...]) -> tuple[str, ...]:
    """vllm-router's command line. Raises UsageError when [serve.options] sets what is decided here."""
    given = normalised(router.serve.options)
    for key in given.keys() & _DECIDED.keys():
        raise UsageError(
            f"[serve.options] must not set {key}: it comes from {_DECIDED[key]}",
            where=f"router {router.name}",
            remedy=f"remove {key} from [serve.options]",
        )
    host = every_address(router.serve.allow[0]) if router.serve.allow else "127.0.0.1"
    options = {"host": host, "port": router.serve.port, "policy": router.serve.policy, **_PATIENT, **given}
    words: list[str] = []
    for key, value in options.items():
        words.append(f"--{key}")
        if isinstance(value, list):
            words += map(str, value)
        elif value is not True:
            words.append(str(value))
    return (*words, "--worker-urls", *urls)


def _quoted(word: str) -> str:
    """A word as systemd reads it back from ExecStart."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if not word or set(word) & set(" \t'\"\\;") else escaped
