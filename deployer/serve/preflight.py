"""Reasons not to touch a healthy service: what would keep a new one from starting, found before the old one stops."""

from __future__ import annotations

from shlex import quote

from deployer.errors import PreflightError
from deployer.facts import firewall, gpu, ports
from deployer.facts.confinement import Confinement
from deployer.facts.finding import failures
from deployer.facts.gpu import Gpus
from deployer.facts.judge_systemd import unit_findings
from deployer.install.verify import scratch_command
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.transport.base import SILENCE, Transport

_HELD_MIB = 1024
# Parses the file with `vllm serve`'s own parser, through its own entry, and stops where the server would start.
_PARSE = """
import sys
from vllm.entrypoints.cli import main, serve
serve.ServeSubcommand.cmd = staticmethod(lambda args: print("options-accepted"))
sys.argv = ["vllm", "serve", "--config", sys.argv[1]]
main.main()
"""


def port_is_free(inventory: Inventory, transport: Transport, units: frozenset[str]) -> None:
    """Raises PreflightError when somebody else than `units` listens on the service's port."""
    holder = ports.read(transport, inventory.serve.port)
    if holder is not None and holder.unit not in units:
        raise PreflightError(
            f"port {inventory.serve.port} is taken by {holder}",
            where=transport.name,
            remedy="stop it, name its unit with --replace, or set another [serve] port",
        )


def gpus_are_ready(gpus: Gpus, service_runs: bool, replace: str | None, where: str) -> None:
    """Raises PreflightError when a GPU does not answer, or somebody else holds its memory."""
    amiss = gpus.failure or "; ".join(str(card) for card in gpus.broken)
    if amiss:
        raise PreflightError(
            f"nvidia-smi fails: {amiss}",
            where=where,
            remedy=f"{_versions(gpus)}; nothing was stopped. ddtree-deploy check says more",
        )
    held = [card for card in gpus.cards if card.memory_total - card.memory_free > _HELD_MIB]
    if held and not service_runs and replace is None:
        who = ", ".join(str(holder) for holder in gpus.holders) or "a process not seen from here"
        raise PreflightError(
            f"GPU {', '.join(str(card.index) for card in held)} is held by {who}",
            where=where,
            remedy="name its unit with --replace UNIT, or stop it",
        )


def _versions(gpus: Gpus) -> str:
    if gpus.module and gpus.library and gpus.module != gpus.library:
        return (
            f"the kernel module is {gpus.module} and the library {gpus.library}: reload the module, or restart the host"
        )
    return "see dmesg on the host"


def ready(inventory: Inventory, transport: Transport, *, service_runs: bool, replace: str | None) -> Gpus:
    """Everything that can be known before the old service stops; gives the GPUs, whose nodes the unit names."""
    unit = Layout.of(inventory).unit
    units = frozenset({unit, *([replace] if replace else [])})
    port_is_free(inventory, transport, units)
    if inventory.serve.address:
        firewall.must_hold(transport, inventory.install.python, unit)
    if inventory.install.build == "cpu":
        return Gpus()
    gpus = gpu.read(transport, sudo=True)
    gpus_are_ready(gpus, service_runs or held_only_by(gpus, units), replace, transport.name)
    return gpus


def held_only_by(gpus: Gpus, units: frozenset[str]) -> bool:
    """Whether all who hold the GPUs are `units`, which the switch stops: the host may be about to start ours again."""
    return bool(gpus.holders) and all(holder.unit in units for holder in gpus.holders)


def unit_can_start(confined: Confinement | None, where: str) -> None:
    """Raises PreflightError when a transient unit with the service's settings does not start, nor a softer one."""
    if confined is None or confined.softer is not None:
        return
    failed = "; ".join(f"{finding.subject}: {finding.seen}" for finding in failures(unit_findings(confined)))
    raise PreflightError(
        f"the unit could not start: {failed}",
        where=where,
        remedy="ddtree-deploy check says how to mend it; nothing was stopped",
    )


def models_are_there(transport: Transport, *folders: str) -> None:
    """Raises PreflightError for a model folder without a config.json."""
    for folder in folders:
        if not transport.run(f"test -f {quote(folder)}/config.json", sudo=True, check=False).ok:
            raise PreflightError(
                f"there is no model in {folder}",
                where=transport.name,
                remedy="ddtree-deploy push, or correct [target] path",
            )


def options_are_vllms(transport: Transport, python: str, config: str) -> None:
    """Lets the installed vLLM read `config`, a path on the host that ends in .yaml. PreflightError if it refuses,
    TransferError if it is silent for too long.
    """
    command = scratch_command(python, config)
    result = transport.run(command, sudo=True, check=False, timeout=SILENCE, stdin=_PARSE.encode())
    if "options-accepted" not in result.stdout:
        lines = [line for line in result.stderr.strip().splitlines() if "error" in line.lower()]
        said = (lines or result.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise PreflightError(
            f"vLLM refuses the options: {said.strip()[-300:]}",
            where=transport.name,
            remedy="correct [serve.options]; nothing was stopped",
        )
