"""NVIDIA GPUs: cards, driver, memory, who uses it, and the device nodes that a container needs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deployer.transport.base import Transport

COMMAND = r"""
echo '[module]'; cat /proc/driver/nvidia/version 2>/dev/null
echo '[nodes]'; ls /dev/nvidia0 /dev/nvidiactl /dev/nvidia-uvm 2>/dev/null
command -v nvidia-smi >/dev/null || exit 0
echo '[gpus]'; nvidia-smi --query-gpu=index,name,memory.total,memory.free,driver_version,compute_cap \
  --format=csv,noheader,nounits 2>&1
echo '[holders]'; nvidia-smi --query-compute-apps=pid,used_memory,process_name --format=csv,noheader,nounits 2>&1
true
""".strip()
_MODULE = re.compile(r"NVRM version:.*?(?:Module for \S+|Module)\s+(\d+[\d.]*)")


@dataclass(frozen=True)
class Gpu:
    """One card. Memory in MiB."""

    index: int
    name: str
    memory_total: int
    memory_free: int
    compute_capability: str


@dataclass(frozen=True)
class Holder:
    """A process that holds GPU memory, in MiB (None where a container may not see it)."""

    pid: int
    memory: int | None
    process: str


@dataclass(frozen=True)
class Gpus:
    """Everything about the GPUs. `failure` is what nvidia-smi said instead of an answer;
    `driver` is the library's version.
    """

    cards: tuple[Gpu, ...] = ()
    driver: str | None = None
    module: str | None = None
    nodes: tuple[str, ...] = ()
    holders: tuple[Holder, ...] = ()
    failure: str | None = None
    tool: bool = False


def parse(text: str) -> Gpus:
    """Reads the command's sections. A host without GPUs gives an empty Gpus."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if re.fullmatch(r"\[\w+\]", line):
            current = sections.setdefault(line.strip("[]"), [])
        elif line.strip():
            current.append(line.strip())
    module = _MODULE.search("\n".join(sections.get("module", [])))
    rows = [row for line in sections.get("gpus", []) if len(row := [cell.strip() for cell in line.split(",")]) == 6]
    unread = [line for line in sections.get("gpus", []) if line.count(",") != 5]
    return Gpus(
        cards=tuple(Gpu(int(r[0]), r[1], int(r[2]), int(r[3]), r[5]) for r in rows),
        driver=rows[0][4] if rows else None,
        module=module[1] if module else None,
        nodes=tuple(sections.get("nodes", [])),
        holders=tuple(_holder(line) for line in sections.get("holders", []) if line.split(",")[0].strip().isdigit()),
        failure=" ".join(unread) or None,
        tool="gpus" in sections,
    )


def _holder(line: str) -> Holder:
    pid, memory, process = (cell.strip() for cell in line.split(",", 2))
    return Holder(int(pid), int(memory) if memory.isdigit() else None, process)


def read(transport: Transport) -> Gpus:
    return parse(transport.run(COMMAND).stdout)
