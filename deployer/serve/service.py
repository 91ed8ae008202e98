"""A running unit on a host: its state, its journal, its HTTP side; and the few things that are done to it."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

from deployer.facts import service as facts
from deployer.facts.service import ServiceState
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.serve.endpoint import Answer, Completion, Endpoint
from deployer.serve.metrics import Counters
from deployer.serve.options import DRAIN_SECONDS
from deployer.transport.base import Transport

_STOP_TIMEOUT = DRAIN_SECONDS + 60.0


@dataclass(frozen=True)
class Service:
    """One unit; implements the gate's Subject."""

    transport: Transport
    layout: Layout
    model: str
    endpoint: Endpoint

    @classmethod
    def of(cls, inventory: Inventory, transport: Transport) -> Service:
        """The production service of an inventory."""
        layout = Layout.of(inventory)
        endpoint = Endpoint(transport, inventory.serve.port, layout.environment, inventory.install.python)
        return cls(transport, layout, inventory.serve.served_model_name, endpoint)

    def state(self) -> ServiceState:
        return facts.read(self.transport, self.layout)

    def journal(self, lines: int) -> tuple[str, ...]:
        unit = quote(self.layout.unit)
        # The invocation's own lines: a journal may still hold what an earlier deployment said.
        command = (
            f"id=$(systemctl show -P InvocationID {unit}); "
            f"journalctl --no-pager -q -o cat -n {lines} -u {unit} ${{id:+_SYSTEMD_INVOCATION_ID=$id}} || true"
        )
        return tuple(self.transport.run(command, sudo=True).stdout.splitlines())

    def ask(self, path: str) -> Answer:
        return self.endpoint.ask(path, timeout=5.0)

    def models(self) -> tuple[str, ...]:
        return self.endpoint.models()

    def complete(self, prompt: str, tokens: int, timeout: float) -> Completion:
        return self.endpoint.complete(self.model, prompt, tokens, timeout=timeout)

    def counters(self) -> Counters:
        return self.endpoint.counters()

    def start(self) -> None:
        """Starts the unit with a fresh count of starts: those of earlier deployments are not its own."""
        unit = quote(self.layout.unit)
        self.transport.run(
            f"systemctl reset-failed {unit} 2>/dev/null; systemctl start {unit}", sudo=True, timeout=120.0
        )

    def stop(self) -> None:
        """Stops the unit and waits until its last process is gone."""
        stop_unit(self.transport, self.layout.unit)


def stop_unit(transport: Transport, unit: str) -> None:
    """Stops any unit; one that does not exist is stopped already."""
    transport.run(f"systemctl stop {quote(unit)} 2>/dev/null || ! systemctl is-active -q {quote(unit)}",
                  sudo=True, timeout=_STOP_TIMEOUT + 600.0)  # fmt: skip
