"""Findings about the GPUs: the mistakes that otherwise show after minutes of loading."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.facts.finding import Finding, Level, judged
from deployer.facts.gather import Facts
from deployer.facts.gpu import Gpus
from deployer.facts.host import version
from deployer.inventory.model import Checks, Inventory

UTILISATION = 0.92  # vLLM's default share of a card's memory


def gpu_findings(facts: Facts, inventory: Inventory) -> Iterator[Finding]:
    """Nothing for a host that is to have no GPU."""
    checks, gpus = inventory.checks, facts.gpus
    if not checks.gpus:
        return
    if gpus.failure or not gpus.cards:
        yield _no_answer(gpus)
        return
    yield from _cards(gpus, checks)
    yield from _driver(gpus, checks)
    yield _nodes(gpus)
    if not facts.service.running:
        yield _memory(gpus, inventory)


def _no_answer(gpus: Gpus) -> Finding:
    if gpus.failure and "version mismatch" in gpus.failure:
        remedy = (
            "the host's driver was upgraded under the container: give the container the same library version, or reboot"
        )
        return Finding(Level.FAIL, "gpu", f"{gpus.failure} (kernel module {gpus.module})", remedy)
    if not gpus.tool:
        return Finding(Level.FAIL, "gpu", "no nvidia-smi", "install the driver's user-space part in the container")
    remedy = "on the Proxmox host: nvidia-smi works there? Then pass /dev/nvidia* into the container"
    return Finding(Level.FAIL, "gpu", gpus.failure or "no card is visible", remedy)


def _cards(gpus: Gpus, checks: Checks) -> Iterator[Finding]:
    seen = f"{len(gpus.cards)} x {gpus.cards[0].name}"
    yield judged(len(gpus.cards) >= checks.gpus, "gpus", seen, f"{checks.gpus} are wanted: pass the others in")
    other = [card.name for card in gpus.cards if checks.gpu_model and checks.gpu_model not in card.name]
    if other:
        yield Finding(Level.WARN, "gpu model", ", ".join(other), f"the inventory says {checks.gpu_model}")
    wanted = (checks.gpu_memory_gib or 0) * 1024
    small = [
        f"GPU {card.index}: {card.memory_total / 1024:.1f} GiB" for card in gpus.cards if card.memory_total < wanted
    ]
    if small:
        yield Finding(Level.FAIL, "gpu memory", ", ".join(small), f"{checks.gpu_memory_gib} GiB per card are wanted")


def _driver(gpus: Gpus, checks: Checks) -> Iterator[Finding]:
    driver = gpus.driver or "unknown"
    recent = not checks.min_driver or version(driver) >= version(checks.min_driver)
    yield judged(
        recent, "driver", driver, f"vLLM's wheels need {checks.min_driver} or newer: upgrade it on the Proxmox host"
    )
    if gpus.module and gpus.module != driver:
        seen = f"kernel module {gpus.module}, library {driver}"
        yield Finding(Level.FAIL, "driver match", seen, "make both equal; running jobs live on until they restart")


def _nodes(gpus: Gpus) -> Finding:
    present = "/dev/nvidia-uvm" in gpus.nodes
    remedy = "on the Proxmox host: nvidia-modprobe -u -c=0, and allow the node's major in the container's cgroup rules"
    return judged(present, "device nodes", "complete" if present else "/dev/nvidia-uvm is missing", remedy)


def _memory(gpus: Gpus, inventory: Inventory) -> Finding:
    """Free memory below the share that vLLM will ask for: it would die after minutes of loading."""
    given = inventory.serve.options.get("gpu-memory-utilization", UTILISATION)
    share = given if isinstance(given, float) else UTILISATION
    short = [card for card in gpus.cards[: inventory.checks.gpus] if card.memory_free < share * card.memory_total]
    if not short:
        return Finding(Level.OK, "free gpu memory", f"enough for {share:g} of each card")
    cards = ", ".join(f"GPU {card.index}: {card.memory_free} of {card.memory_total} MiB free" for card in short)
    holders = (
        ", ".join(f"{holder.process} (pid {holder.pid})" for holder in gpus.holders) or "processes not visible here"
    )
    seen = f"{cards}; held by {holders}"
    return Finding(
        Level.WARN, "free gpu memory", seen, "serve with --replace UNIT of what holds it, or stop that first"
    )
