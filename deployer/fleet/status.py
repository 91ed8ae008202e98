"""`router status`: the router, and every box of its group as it sees it."""

from __future__ import annotations

from deployer.facts import service as facts
from deployer.fleet.api import Api, endpoint_of
from deployer.fleet.inventory import Router, address_of, boxes
from deployer.plan.step import Plan
from deployer.serve import uninstall as host
from deployer.serve.service import Service
from deployer.transport.base import Transport


def status(router: Router, transport: Transport) -> tuple[tuple[str, str], ...]:
    """Rows (label, value)."""
    state = facts.read(transport, router.layout)
    rows = [
        ("unit", f"{router.layout.unit}: {state.active} ({state.sub})"),
        ("since", state.since or "-"),
        ("restarts", str(state.restarts)),
        ("release", state.current or "none"),
        ("address", f"{'0.0.0.0' if router.serve.allow else '127.0.0.1'}:{router.serve.port} on {transport.name}"),
        ("policy", router.serve.policy),
    ]
    workers = Api(endpoint_of(router, transport)).workers() if state.running else None
    if workers is None:
        return (*rows, ("boxes", "unknown: the router does not answer"))
    seen = {worker.url: "healthy" if worker.healthy else "unhealthy: gets no requests" for worker in workers}
    members = {address_of(box): box.name for box in boxes(router)}
    named = [
        (f"box {name}", f"{url} {seen.get(url, 'is taken out: gets no requests')}") for url, name in members.items()
    ]
    others = [("box of no file", f"{url} {said}") for url, said in seen.items() if url not in members]
    return (*rows, *named, *others)


def uninstall(router: Router, transport: Transport) -> Plan:
    """Unit, releases, state and account; the boxes are not touched."""
    service = Service(transport, router.layout, "", endpoint_of(router, transport))
    return Plan(router.name, host.steps(service))
