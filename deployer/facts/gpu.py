"""NVIDIA GPUs: cards, driver and libraries, memory, who uses it, and the device nodes that a container needs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deployer.facts import nodes
from deployer.facts.nodes import Node
from deployer.facts.sections import pairs, sections
from deployer.transport.base import Transport

# Modes are a query of their own: a driver that does not know one of its fields answers the first all the same.
# Holders twice: nvidia-smi in a container often lists none, or by numbers of another process namespace.
COMMAND = rf"""
echo '[module]'; cat /proc/driver/nvidia/version 2>/dev/null
{nodes.COMMAND}
PATH=$PATH:/usr/sbin:/sbin
echo '[libraries]'; for l in libcuda.so.1 libnvidia-ml.so.1; do
  p=$(ldconfig -p 2>/dev/null | sed -n "s/^[[:space:]]*$l .*x86-64.*=> //p" | head -n 1)
  echo "$l=$(test -z "$p" || readlink -f "$p")"; done
echo '[users]'; for p in $(find /proc/[0-9]*/fd -lname '/dev/nvidia[0-9]*' 2>/dev/null | cut -d/ -f3 | sort -un); do
  echo "$p $(sed -En 's,.*/([^/]*\.(service|scope))(/.*)?$,\1,p' /proc/$p/cgroup 2>/dev/null | head -n 1)" \
    "$(cat /proc/$p/comm 2>/dev/null)"; done
command -v nvidia-smi >/dev/null || exit 0
echo '[gpus]'; nvidia-smi --query-gpu=index,name,memory.total,memory.free,driver_version,compute_cap \
  --format=csv,noheader,nounits 2>&1
echo '[modes]'; nvidia-smi --query-gpu=index,mig.mode.current,compute_mode --format=csv,noheader,nounits 2>&1
echo '[holders]'; nvidia-smi --query-compute-apps=pid,used_memory,process_name --format=csv,noheader,nounits 2>&1
true
""".strip()
MODULE = re.compile(r"NVRM version:.*?(?:Module for \S+|Module)\s+(\d+[\d.]*)")
_LIBRARY = re.compile(r"\.so\.(\d+\.[\d.]+)$")
_COLUMNS = 6
_WARNING = "WARNING:"  # said beside an answer, not in its place


@dataclass(frozen=True)
class Gpu:
    """One card. Memory in MiB. `mig` means that it is cut into instances; `mode` is the compute mode."""

    index: int
    name: str
    memory_total: int
    memory_free: int
    compute_capability: str
    mig: bool = False
    mode: str = "Default"


@dataclass(frozen=True)
class Broken:
    """A card that is listed, but whose memory cannot be read; `said` is what stands in place of a number."""

    index: str
    name: str
    said: str

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name}): {self.said}"


@dataclass(frozen=True)
class Holder:
    """A process that holds GPU memory, in MiB (None where it cannot be seen), and its unit where there is one."""

    pid: int
    memory: int | None
    process: str
    unit: str | None = None

    def __str__(self) -> str:
        amount = "" if self.memory is None else f", {self.memory} MiB"
        return f"{self.process} (pid {self.pid}{amount}{f', {self.unit}' if self.unit else ''})"


@dataclass(frozen=True)
class Gpus:
    """Everything about the GPUs. `failure` is what nvidia-smi said in place of an answer, be it of one card, `warning`
    what it said beside one; `driver` is the version that it named, `module` the loaded kernel module's, `library` that
    of the user-space files (None where not found).
    """

    cards: tuple[Gpu, ...] = ()
    broken: tuple[Broken, ...] = ()
    driver: str | None = None
    module: str | None = None
    library: str | None = None
    libcuda: bool = False
    devices: tuple[Node, ...] = ()
    holders: tuple[Holder, ...] = ()
    failure: str | None = None
    warning: str | None = None
    tool: bool = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """The device nodes that are there: what a unit's DeviceAllow names."""
        return tuple(node.path for node in self.devices if node.usable)


def parse(text: str) -> Gpus:
    """Reads the command's sections. A host without GPUs gives an empty Gpus."""
    found = sections(text)
    module = MODULE.search("\n".join(found.get("module", [])))
    lines = found.get("gpus", [])
    rows = [_cells(line, _COLUMNS) for line in lines if line.count(",") == _COLUMNS - 1 and line[0].isdigit()]
    others = [line for line in lines if _cells(line, _COLUMNS) not in rows]
    modes = {row[0]: row[1:] for line in found.get("modes", []) if len(row := _cells(line, 3)) == 3}
    libraries = pairs(found.get("libraries", []))
    versions = [match[1] for path in libraries.values() if (match := _LIBRARY.search(path))]
    return Gpus(
        cards=tuple(_card(row, modes.get(row[0])) for row in rows if _readable(row)),
        broken=tuple(Broken(row[0], row[1], _amiss(row)) for row in rows if not _readable(row)),
        driver=next((row[4] for row in rows if row[4][:1].isdigit()), None),
        module=module[1] if module else None,
        library=versions[0] if versions else None,
        libcuda=bool(libraries.get("libcuda.so.1")),
        devices=nodes.parse(found.get("nodes", [])),
        holders=_holders(found.get("holders", []), found.get("users", [])),
        failure=" ".join(line for line in others if not line.startswith(_WARNING)) or None,
        warning=" ".join(line for line in others if line.startswith(_WARNING)) or None,
        tool="gpus" in found,
    )


def _cells(line: str, columns: int) -> list[str]:
    return [cell.strip() for cell in line.split(",", columns - 1)]


def _readable(row: list[str]) -> bool:
    return row[2].isdigit() and row[3].isdigit()


def _amiss(row: list[str]) -> str:
    return next(cell for cell in row[2:4] if not cell.isdigit())


def _card(row: list[str], modes: list[str] | None) -> Gpu:
    mig, mode = modes or ("[N/A]", "Default")
    return Gpu(int(row[0]), row[1], int(row[2]), int(row[3]), row[5], mig == "Enabled", mode)


def _holders(apps: list[str], users: list[str]) -> tuple[Holder, ...]:
    """nvidia-smi's list with units from the open device nodes, and the processes that only the nodes tell of."""
    seen: dict[int, Holder] = {}
    for pid, unit, process in (_user(line) for line in users):
        seen[pid] = Holder(pid, None, process, unit)
    for line in apps:
        row = _cells(line, 3)
        if len(row) == 3 and row[0].isdigit():
            pid, memory = int(row[0]), int(row[1]) if row[1].isdigit() else None
            seen[pid] = Holder(pid, memory, row[2], seen[pid].unit if pid in seen else None)
    return tuple(seen[pid] for pid in sorted(seen))


def _user(line: str) -> tuple[int, str | None, str]:
    """A line `PID [UNIT] NAME`: the unit is missing for a process outside of systemd's tree."""
    pid, _, rest = line.partition(" ")
    unit, _, process = rest.strip().partition(" ")
    return (int(pid), unit, process) if unit.endswith((".service", ".scope")) else (int(pid), None, rest.strip())


def read(transport: Transport, *, sudo: bool = False) -> Gpus:
    """`sudo` also sees the processes of other accounts."""
    return parse(transport.run(COMMAND, sudo=sudo).stdout)
