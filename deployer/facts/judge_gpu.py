"""Findings about the GPUs: the mistakes that otherwise show after minutes of loading."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.facts.finding import Finding, Level, judged
from deployer.facts.gather import Facts
from deployer.facts.gpu import Gpu, Gpus
from deployer.facts.host import version
from deployer.facts.judge_nodes import node_findings
from deployer.install.lockfile import bundled
from deployer.inventory.model import Checks, Inventory

UTILISATION = 0.92  # vLLM's default share of a card's memory
OLDEST_DRIVER = {12: "525.60.13", 13: "580"}  # by CUDA's major version, on Linux
OLDEST_CAPABILITY = (8, 0)  # bfloat16 and FLASH_ATTN
_TOO_OLD = "is not a valid field to query"


def gpu_findings(facts: Facts, inventory: Inventory) -> Iterator[Finding]:
    """Nothing for a host that is to have no GPU."""
    checks, gpus = inventory.checks, facts.gpus
    if not checks.gpus:
        return
    yield from _driver(gpus, inventory)
    yield from node_findings(gpus, facts.confinement)
    yield from _broken(gpus)
    if gpus.failure or not (gpus.cards or gpus.broken):
        yield _no_answer(gpus)
    if gpus.warning:
        remedy = "see dmesg on the Proxmox host for Xid; a corrupted infoROM is the maker's to mend"
        yield Finding(Level.WARN, "gpu warning", gpus.warning, remedy)
    if not gpus.cards:
        return
    yield from _cards(gpus, checks)
    yield from _modes(gpus, checks)
    if not facts.service.running:
        yield _memory(gpus, inventory)


def _no_answer(gpus: Gpus) -> Finding:
    said = gpus.failure or "no card is visible"
    if "version mismatch" in said:
        seen = f"{said} (kernel module {gpus.module}, library {gpus.library or gpus.driver or 'unknown'})"
        remedy = (
            "the host's driver was upgraded under the container: install the library of the kernel module's version in "
            "the container, or reboot the Proxmox host if the module is the older one; what runs now lives on until then"
        )
        return Finding(Level.FAIL, "gpu", seen, remedy)
    if not gpus.tool:
        return Finding(Level.FAIL, "gpu", "no nvidia-smi", "install the driver's user-space part in the container")
    if _TOO_OLD in said:
        seen = f"{said} (kernel module {gpus.module or 'unknown'})"
        return Finding(Level.FAIL, "gpu", seen, "the driver is too old to answer: upgrade it on the Proxmox host")
    return Finding(Level.FAIL, "gpu", said, _remedy(said, gpus))


def _remedy(said: str, gpus: Gpus) -> str:
    """By nvidia-smi's words."""
    if "couldn't communicate" in said or "Driver Not Loaded" in said:
        return "on the Proxmox host: modprobe nvidia; if that fails, build the module for its kernel (dkms autoinstall)"
    if "Unknown Error" in said and "device handle" not in said:
        return "the container's cgroup refuses the cards since something reloaded it: pct reboot the container"
    if "device handle" in said or "GPU is lost" in said:
        return "the card fell off the bus: see dmesg on the Proxmox host for Xid, then reboot that host"
    if "Insufficient Permissions" in said:
        return "the nodes' mode keeps the account out: see the device nodes here, or run the check as root"
    if "library" in said and not gpus.library:
        return "install libnvidia-ml of the kernel module's version in the container"
    return "on the Proxmox host: nvidia-smi works there? Then pass /dev/nvidia* into the container"


def _broken(gpus: Gpus) -> Iterator[Finding]:
    if not gpus.broken:
        return
    said = " ".join(card.said for card in gpus.broken)
    if "Insufficient Permissions" in said:
        remedy = "the account may not read it: run the check as root or with sudo, or see the mode of the device nodes"
    elif "[N/A]" in said or "Not Supported" in said:
        remedy = "the card tells of no memory of its own: an engine's share cannot be checked; use a card that has some"
    else:
        remedy = (
            "on the Proxmox host: see dmesg for Xid, stop what uses the card, nvidia-smi --gpu-reset -i N, or reboot"
        )
    yield Finding(Level.FAIL, "gpu state", "; ".join(map(str, gpus.broken)), remedy)


def _cards(gpus: Gpus, checks: Checks) -> Iterator[Finding]:
    names = [card.name for card in gpus.cards]
    seen = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    yield judged(len(gpus.cards) >= checks.gpus, "gpus", seen, f"{checks.gpus} are wanted: pass the others in")
    other = [name for name in names if checks.gpu_model and checks.gpu_model not in name]
    if other:
        remedy = f"the inventory says {checks.gpu_model}: use that host, or correct [checks] gpu_model"
        yield Finding(Level.WARN, "gpu model", ", ".join(other), remedy)
    wanted = checks.gpu_memory_gib or 0
    small = [f"GPU {c.index}: {c.memory_total / 1024:.1f} GiB" for c in gpus.cards if c.memory_total < wanted * 1024]
    if small:
        remedy = f"{wanted:g} GiB per card are wanted: use larger cards, or correct [checks] gpu_memory_gib"
        yield Finding(Level.FAIL, "gpu memory", ", ".join(small), remedy)
    old = [f"GPU {c.index}: {c.compute_capability}" for c in gpus.cards if () < _capability(c) < OLDEST_CAPABILITY]
    if old:
        remedy = "bfloat16 and flash attention need compute capability 8.0 (Ampere) or newer: use another host"
        yield Finding(Level.FAIL, "gpu generation", ", ".join(old), remedy)


def _capability(card: Gpu) -> tuple[int, ...]:
    return version(card.compute_capability)


def _modes(gpus: Gpus, checks: Checks) -> Iterator[Finding]:
    """Cards set up for something else. An engine sees one instance of a cut card, so several cards never work."""
    cut = [str(card.index) for card in gpus.cards if card.mig]
    if cut:
        remedy = "on the Proxmox host: nvidia-smi -i N -mig 0, then reset or reboot"
        level = Level.FAIL if checks.gpus > 1 else Level.WARN
        yield Finding(level, "gpu mode", f"MIG is enabled on GPU {', '.join(cut)}", remedy)
    closed = [str(card.index) for card in gpus.cards if card.mode == "Prohibited"]
    if closed:
        remedy = "on the Proxmox host: nvidia-smi -i N -c DEFAULT"
        yield Finding(Level.FAIL, "gpu mode", f"compute is prohibited on GPU {', '.join(closed)}", remedy)


def _driver(gpus: Gpus, inventory: Inventory) -> Iterator[Finding]:
    """Holds the driver against the lock's CUDA, and its two halves against each other."""
    driver, failure = gpus.driver or gpus.module, gpus.failure or ""
    cuda = bundled(inventory.install.build).version("nvidia-cuda-runtime")
    if driver:
        built = f"CUDA {'.'.join(map(str, version(cuda)[:2]))}" if cuda else "the inventory"
        oldest = (OLDEST_DRIVER.get(version(cuda)[0], "") if cuda else "", inventory.checks.min_driver or "")
        least = max(oldest, key=version)
        remedy = f"{built} of vLLM's wheels needs {least} or newer: upgrade it on the Proxmox host"
        yield judged(version(driver) >= version(least), "driver", f"{driver}, for {built}", remedy)
    library = gpus.library or gpus.driver
    if gpus.module and library and gpus.module != library and "version mismatch" not in failure:
        seen = f"kernel module {gpus.module}, library {library}"
        remedy = "install the module's version in the container; running jobs live on until they restart"
        yield Finding(Level.FAIL, "driver match", seen, remedy)
    if gpus.library and not gpus.libcuda:
        remedy = (
            f"install libcuda of version {gpus.module or gpus.library} in the container (Debian: libcuda1), ldconfig"
        )
        yield Finding(Level.FAIL, "libcuda", "the loader does not find libcuda.so.1", remedy)


def _memory(gpus: Gpus, inventory: Inventory) -> Finding:
    """Free memory below the share that vLLM will ask for: it would die after minutes of loading."""
    given = inventory.serve.options.get("gpu-memory-utilization", UTILISATION)
    share = given if isinstance(given, float) else UTILISATION
    short = [card for card in gpus.cards[: inventory.checks.gpus] if card.memory_free < share * card.memory_total]
    if not short:
        return Finding(Level.OK, "free gpu memory", f"enough for {share:g} of each card")
    cards = ", ".join(
        f"GPU {card.index}: {card.memory_free} of {card.memory_total} MiB free, {share * card.memory_total:.0f} wanted"
        for card in short
    )
    holders = ", ".join(map(str, gpus.holders)) or "processes not visible here (nvidia-smi on the Proxmox host)"
    units = [holder.unit for holder in gpus.holders if holder.unit and holder.unit.endswith(".service")]
    remedy = f"serve with --replace {units[0] if units else 'UNIT of what holds it'}, or stop that first"
    return Finding(Level.WARN, "free gpu memory", f"{cards}; held by {holders}", remedy)
