"""The Proxmox host of a container, where a jump host is one: the kernel's side of the GPUs, and the container's rules."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from deployer.facts import nodes
from deployer.facts.gpu import MODULE
from deployer.facts.nodes import Node
from deployer.facts.sections import pairs, sections
from deployer.transport.base import Transport

# Only the keys that matter, and only of the present: snapshots follow as [sections] of the same file.
COMMAND = r"""
PATH=$PATH:/usr/sbin:/sbin
echo '[host]'; echo "name=$(uname -n)"; echo "version=$(pveversion 2>/dev/null)"
echo '[module]'; cat /proc/driver/nvidia/version 2>/dev/null
echo '[majors]'; sed -n 's/^ *\([0-9]*\) \(nvidia.*\)$/\1 \2/p' /proc/devices
{NODES}
echo '[containers]'; s=; test "$(id -u)" = 0 || s='sudo -n'
$s awk 'FNR == 1 { print "file " FILENAME; past = 0 } /^\[/ { past = 1 }
  !past && /^(hostname|net[0-9]+|dev[0-9]+|features|unprivileged|lxc\.(cgroup2?\.devices|mount\.entry)[^:=]*)[:=]/' \
  {FOLDER}/*.conf 2>/dev/null
true
""".strip().replace("{NODES}", nodes.COMMAND)
FOLDER = "/etc/pve/lxc"
_KEY = re.compile(r"^([^:=\s]+)\s*[:=]\s*(.*)$")
_MAC = re.compile(r"hwaddr=([0-9A-Fa-f:]{17})")
_RULE = re.compile(r"^(?:a|(?P<kind>[abc]) (?P<major>\*|\d+):(?P<minor>\*|\d+))(?:\s+(?P<access>[rwm]+))?$")


@dataclass(frozen=True)
class Container:
    """One container's configuration. `rules` are its cgroup v2 device rules, `old_rules` those written for v1, which
    a cgroup v2 host ignores; `passed` the host's nodes that it gets by dev0, dev1 ..., `mounted` by mount entries.
    """

    file: str
    hostname: str = ""
    macs: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    old_rules: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    mounted: tuple[str, ...] = ()
    nesting: bool = False
    unprivileged: bool = False

    @property
    def id(self) -> str:
        return self.file.rpartition("/")[2].removesuffix(".conf")

    def allows(self, node: Node) -> bool:
        """Whether its rules let it open a device with the node's numbers for reading and writing."""
        return node.path in self.passed or any(_covers(rule, node) for rule in self.rules)


@dataclass(frozen=True)
class Proxmox:
    """`version` is empty on a machine that is no Proxmox host; `majors` as the running kernel gave them out."""

    name: str
    version: str = ""
    module: str | None = None
    majors: tuple[tuple[str, int], ...] = ()
    devices: tuple[Node, ...] = ()
    containers: tuple[Container, ...] = ()

    def container(self, macs: tuple[str, ...], hostname: str) -> Container | None:
        """The one with a network card of these addresses; else the only one of that name."""
        by_card = [found for found in self.containers if set(found.macs) & {mac.lower() for mac in macs}]
        by_name = [found for found in self.containers if found.hostname == hostname]
        return by_card[0] if by_card else by_name[0] if len(by_name) == 1 else None


def _covers(rule: str, node: Node) -> bool:
    match = _RULE.match(rule)
    if match is None or match["kind"] == "b":
        return False
    if not {"r", "w"} <= set(match["access"] or "rwm"):
        return False
    return match["major"] in {None, "*", str(node.major)} and match["minor"] in {None, "*", str(node.minor)}


def command(folder: str = FOLDER) -> str:
    return COMMAND.replace("{FOLDER}", shlex.quote(folder))


def parse(text: str) -> Proxmox:
    """Reads the command's sections."""
    found = sections(text)
    host = pairs(found.get("host", []))
    module = MODULE.search("\n".join(found.get("module", [])))
    majors = (line.split(None, 1) for line in found.get("majors", []))
    return Proxmox(
        name=host.get("name", ""),
        version=host.get("version", ""),
        module=module[1] if module else None,
        majors=tuple((name, int(number)) for number, name in majors),
        devices=nodes.parse(found.get("nodes", [])),
        containers=_containers(found.get("containers", [])),
    )


def _containers(lines: list[str]) -> tuple[Container, ...]:
    files: dict[str, list[tuple[str, str]]] = {}
    keys: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith("file "):
            keys = files.setdefault(line.removeprefix("file "), [])
        elif match := _KEY.match(line):
            keys.append((match[1], match[2]))
    return tuple(_container(file, keys) for file, keys in files.items())


def _container(file: str, keys: list[tuple[str, str]]) -> Container:
    def all_of(pattern: str) -> tuple[str, ...]:
        return tuple(value for key, value in keys if re.fullmatch(pattern, key))

    nets = " ".join(all_of(r"net\d+"))
    return Container(
        file=file,
        hostname=" ".join(all_of("hostname")),
        macs=tuple(mac.lower() for mac in _MAC.findall(nets)),
        rules=all_of(r"lxc\.cgroup2\.devices\.allow"),
        old_rules=all_of(r"lxc\.cgroup\.devices\.allow"),
        passed=tuple(value.split(",")[0].removeprefix("path=") for value in all_of(r"dev\d+")),
        mounted=tuple(value.split()[0] for value in all_of(r"lxc\.mount\.entry") if value),
        nesting="nesting=1" in ",".join(all_of("features")),
        unprivileged="1" in all_of("unprivileged"),
    )


def read(transport: Transport) -> Proxmox:
    """Without root or sudo the containers' files cannot be read: then there are none."""
    return parse(transport.run(command()).stdout)
