"""`status`: what serves, since when, how well its drafts are accepted, how fast it is, and who deployed it."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from deployer.errors import GateError
from deployer.facts import gpu
from deployer.facts.gpu import Gpus
from deployer.facts.service import ServiceState
from deployer.inventory.model import Inventory
from deployer.plan import audit
from deployer.serve import metrics
from deployer.serve.gate import Clock
from deployer.serve.metrics import Counters
from deployer.serve.records import Records
from deployer.serve.service import Service
from deployer.transport.base import Transport

WINDOW = 2.0  # seconds between two looks at the counters
Rows = Iterator[tuple[str, str]]


def status(inventory: Inventory, transport: Transport, clock: Clock | None = None) -> tuple[tuple[str, str], ...]:
    """Rows (label, value) in the order in which they are read."""
    service = Service.of(inventory, transport)
    state, active = service.state(), Records(transport, service.layout).active()
    rows = [
        ("unit", f"{service.layout.unit}: {state.active} ({state.sub})"),
        ("since", _since(transport, service.layout.unit, state)),
        ("restarts", str(state.restarts)),
        ("release", state.current or "none"),
        ("kept releases", ", ".join(state.releases) or "none"),
        ("deployment", f"{active}, {active.when}" if active else "none has proved itself"),
        *([("confinement", f"softer: without {', '.join(active.softer)}")] if active and active.softer else []),
        ("last change", _last_change(transport, service)),
        ("address", f"127.0.0.1:{inventory.serve.port} on {transport.name}"),
    ]
    live = _live(service, clock or Clock()) if state.running else ()
    cards = memory(gpu.read(transport)) if inventory.install.build == "cuda" else ()
    return (*rows, *live, *cards)


def _since(transport: Transport, unit: str, state: ServiceState) -> str:
    """When the unit became what it is, and how long ago by the host's own clock."""
    if not state.since:
        return "-"
    command = f'echo $(($(date +%s) - $(date -d "$(systemctl show -P ActiveEnterTimestamp {quote(unit)})" +%s)))'
    seconds = transport.run(command, check=False).stdout.strip()
    return f"{state.since}, up {duration(int(seconds))}" if state.running and seconds.isdigit() else state.since


def duration(seconds: int) -> str:
    """The two largest units: 3 d 4 h, 5 min 6 s."""
    parts, left = [], seconds
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        parts.append((count, unit))
    first = next((place for place, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2])


def _last_change(transport: Transport, service: Service) -> str:
    entries = audit.read(transport, service.layout, 1)
    if not entries:
        return "none is on record"
    entry = entries[-1]
    return f"{entry.verb} by {entry.who}, {entry.when}: {entry.outcome}"


def _live(service: Service, clock: Clock) -> Rows:
    health = service.ask("/health")
    yield "health", "200" if health.ok else f"{health.status or 'no answer'} {health.text[:80]}".strip()
    if not health.ok:
        return
    yield "models", ", ".join(service.models())
    try:
        began, before = clock.now(), service.counters()
        clock.sleep(WINDOW)
        seconds, now = clock.now() - began, service.counters()
        yield "throughput", throughput(now.since(before), now, seconds)
        yield from speculation(now)
    except GateError as error:
        yield "metrics", error.what


def throughput(counted: Counters, now: Counters, seconds: float) -> str:
    """Tokens a second that were counted in so many seconds, and the requests at their end."""
    rates = [f"{counted[name] / seconds:.1f} {word}" for name, word in metrics.TOKENS]
    requests = [f"{now[name]:.0f} {word}" for name, word in metrics.REQUESTS]
    return f"{' and '.join(rates)} tokens/s over {seconds:.1f} s; requests: {', '.join(requests)}"


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


def memory(gpus: Gpus) -> Rows:
    """One row per card: how much of its memory is used; or why nobody knows."""
    if gpus.failure:
        yield "GPUs", gpus.failure
    for card in gpus.cards:
        used = (card.memory_total - card.memory_free) / 1024
        yield f"GPU {card.index}", f"{card.name}: {used:.1f} of {card.memory_total / 1024:.1f} GiB used"
    for broken in gpus.broken:
        yield f"GPU {broken.index}", broken.said
