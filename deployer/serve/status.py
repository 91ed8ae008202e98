"""`status`: what serves, since when, and how well its drafts are accepted."""

from __future__ import annotations

from deployer.errors import GateError
from deployer.inventory.model import Inventory
from deployer.serve import metrics
from deployer.serve.metrics import Counters
from deployer.serve.records import Records
from deployer.serve.service import Service
from deployer.transport.base import Transport


def status(inventory: Inventory, transport: Transport) -> tuple[tuple[str, str], ...]:
    """Rows (label, value) in the order in which they are read."""
    service = Service.of(inventory, transport)
    state, active = service.state(), Records(transport, service.layout).active()
    rows = [
        ("unit", f"{service.layout.unit}: {state.active} ({state.sub})"),
        ("since", state.since or "-"),
        ("restarts", str(state.restarts)),
        ("release", state.current or "none"),
        ("kept releases", ", ".join(state.releases) or "none"),
        ("deployment", f"{active}, {active.when}" if active else "none has proved itself"),
        ("address", f"127.0.0.1:{inventory.serve.port} on {transport.name}"),
    ]
    return (*rows, *(_live(service) if state.running else ()))


def _live(service: Service) -> tuple[tuple[str, str], ...]:
    health = service.ask("/health")
    rows = [("health", "200" if health.ok else f"{health.status or 'no answer'} {health.text[:80]}".strip())]
    if health.ok:
        try:
            rows += [("models", ", ".join(service.models())), *speculation(service.counters())]
        except GateError as error:
            rows.append(("metrics", error.what))
    return tuple(rows)


def speculation(counters: Counters) -> list[tuple[str, str]]:
    """Rows about drafts and trees since the engine started."""
    length = counters.acceptance_length
    rows = [
        ("drafts", f"{counters[metrics.DRAFTS]:.0f}"),
        ("acceptance length", f"{length:.2f}" if length else "no drafts yet"),
    ]
    if trees := counters[metrics.TREES]:
        rows += [
            ("trees", f"{trees:.0f}, {counters[metrics.NODES] / trees:.1f} nodes each"),
            ("accepted off the spine", f"{counters[metrics.OFF_SPINE]:.0f}"),
        ]
    return rows
