"""A running unit on a host: its state, its journal, its HTTP side; and the few things that are done to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from shlex import quote

from deployer.errors import DeployError
from deployer.facts import service as facts
from deployer.facts.service import ServiceState
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.serve.endpoint import Answer, Completion, Endpoint
from deployer.serve.metrics import Counters
from deployer.serve.options import DRAIN_SECONDS
from deployer.transport.base import Transport
from deployer.transport.shell import CommandError

STOPS = DRAIN_SECONDS + 660.0  # seconds until a stop has surely ended


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

    @property
    def where(self) -> str:
        return self.endpoint.where

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


# What systemd leaves in the unit's own cgroup holds GPU memory: units of KillMode=process leave their children, and it
# gives up on what waits in the kernel. The cgroup lies elsewhere where the machine's are not all of one version.
_STOP = """
u={UNIT}; g=$(systemctl show -P ControlGroup "$u" 2>/dev/null)
case $g in */"$u") ;; *) g=/system.slice/$u ;; esac
systemctl stop "$u" 2>/dev/null || ! systemctl is-active -q "$u" || exit 1
left() { find {ROOT}$g {ROOT}/unified$g {ROOT}/systemd$g -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u; }
for signal in TERM KILL; do
  for i in 1 2 3 4 5 6 7 8 9 10; do
    p=$(left); test -n "$p" || exit 0
    test $i != 1 || kill -$signal $p 2>/dev/null
    sleep {PAUSE}
  done
done
for p in $(left); do echo "$p $(cat /proc/$p/comm)" >&2; done; exit {LEFT}
""".strip()
_CGROUPS, _PAUSE, LEFT = "/sys/fs/cgroup", "0.5", 9


def stop_command(unit: str, cgroups: str = _CGROUPS, pause: str = _PAUSE) -> str:
    """Stops `unit` and ends what is left of it, first by SIGTERM, after ten times `pause` seconds by SIGKILL."""
    words = {"UNIT": quote(unit), "ROOT": cgroups, "PAUSE": pause, "LEFT": str(LEFT)}
    return re.sub(r"\{([A-Z]+)\}", lambda match: words[match[1]], _STOP)


def stop_unit(transport: Transport, unit: str) -> None:
    """Stops any unit, with every process of its cgroup; one that does not exist is stopped already.

    Raises DeployError when a process cannot be ended.
    """
    result = transport.run(stop_command(unit), sudo=True, check=False, timeout=STOPS)
    if result.returncode == LEFT:
        raise DeployError(
            f"processes of {unit} do not end: {', '.join(result.stderr.split(chr(10))).strip(', ')}",
            where=transport.name,
            remedy="they wait in the kernel, mostly for a GPU: see dmesg there; only a restart of the machine ends them",
        )
    if not result.ok:
        raise CommandError(transport.name, result)
