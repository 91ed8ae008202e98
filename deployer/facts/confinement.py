"""Which of the unit's own settings this host's systemd can carry out: tried on a transient unit, as the service's
account, under the settings of the templates themselves.

The unit runs a shell that reads its limits and opens the device nodes; nothing is written, and systemd forgets it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from string import Template

from deployer.facts import nodes
from deployer.facts.sections import sections
from deployer.install.source import project_path
from deployer.inventory.model import Inventory
from deployer.transport.base import Transport

# What makes folders, needs a release, or is about how a service lives and ends: not for a unit that only looks.
_LEFT_OUT = re.compile(
    r"Type|User|Group|Exec\w+|Restart\w*|Kill\w+|Timeout\w+|OOM\w+|Notify\w+|Watchdog\w+|\w*Environment\w*|Remove\w+|"
    r"\w*Director(y|ies)\w*|(Load|Set|Import)Credential\w*|Bind\w*Paths|Standard\w+|Log\w+|Syslog\w+|Slice|Delegate\w*"
)
# First match wins; the names are part of the findings.
_GROUPS = (
    ("limits", re.compile(r"Limit\w+|Tasks\w+|Memory(Max|High|Low|Min)")),
    ("calls", re.compile(r"SystemCall\w+|Restrict\w+|LockPersonality|NoNewPrivileges|MemoryDenyWriteExecute")),
    ("devices", re.compile(r"Device\w+")),
    ("network", re.compile(r"IPAddress\w+|Socket\w+")),
    ("capabilities", re.compile(r"\w*Capabilit\w+|KeyringMode|UMask")),
    ("namespaces", re.compile(r".*")),
)
# No ${...}: systemd would replace it.
_LOOK = (
    "grep -E '^Max (locked memory|open files)' /proc/self/limits; "
    f'for n in {" ".join(("/dev/nvidia[0-9]*", *nodes.NEEDED))}; do test -e "$n" || continue; '
    'if e=$( (: <>"$n") 2>&1 ); then echo "open $n ok"; else echo "open $n $e"; fi; done'
)
_COMMAND = """
command -v systemd-run >/dev/null && test -d /run/systemd/system || exit 0
user={USER}; id -u "$user" >/dev/null 2>&1 || user=nobody
try() {
  name=$1; shift; echo "[$name]"
  LC_ALL=C systemd-run --quiet --wait --collect --pipe -p RuntimeMaxSec=20 -p "User=$user" "$@" \\
    /bin/sh -c {LOOK} </dev/null 2>&1; code=$?
  echo "exit $code"; return $code
}
echo '[account]'; echo "$user"
for n in /dev/nvidia*; do test -c "$n" && set -- "$@" -p "DeviceAllow=$n rw"; done
try all {ALL} "$@" && exit 0
try plain; bad=
{EACH}
{ALONE}
{SOFTER}
true
""".strip()
# Every setting of the group by itself, then the unit without those that failed; if that fails too, without the group.
_ALONE = 'try only_{KEY} {SETTING} || bad="$bad {KEY}"'
_KEPT = 'case " $bad " in *" {KEY} "*) ;; *) set -- "$@" {SETTING} ;; esac'
OWN = 200  # systemd's own exit codes begin here: the step before the command at which it gave up
SOFT = "namespaces"  # the group that a container without nesting cannot carry out, and that a service can do without
_ONLY = "only_"
_NODES = '"$@"'  # the DeviceAllow settings, made there
_LIMIT = re.compile(r"^Max (locked memory|open files)\s+(\S+)")


@dataclass(frozen=True)
class Trial:
    """A transient unit that was tried: its group of settings, systemd's exit code, and what was said beside it."""

    group: str
    code: int
    said: str = ""


@dataclass(frozen=True)
class Confinement:
    """`trials` holds "all" first; when that failed, "plain" (no settings) and each group alone.

    `opened` maps a device node to "ok" or to the kernel's words; `memlock` (bytes) and `nofile` are the limits of a
    unit that asked for the service's, None for unlimited.
    """

    account: str
    trials: tuple[Trial, ...] = ()
    opened: tuple[tuple[str, str], ...] = ()
    memlock: int | None = 0
    nofile: int | None = 0

    @property
    def starts(self) -> bool:
        """Whether a unit with all of its settings does; true when nothing else is proved."""
        return not self.trials or self.trials[0].code < OWN

    @property
    def softer(self) -> tuple[str, ...] | None:
        """The settings without which the unit starts, none when it starts as it is; None when that does not help."""
        if self.starts:
            return ()
        alone = [trial for trial in self.trials if trial.group.startswith(_ONLY)]
        codes = {trial.group: trial.code for trial in self.trials}
        if codes.get("softer") == 0:
            return tuple(trial.group.removeprefix(_ONLY) for trial in alone if trial.code != 0)
        return tuple(trial.group.removeprefix(_ONLY) for trial in alone) if codes.get("without") == 0 else None


def settings(texts: Iterable[str]) -> tuple[str, ...]:
    """The lines of [Service] in unit files that can be tried."""
    found: list[str] = []
    for text in texts:
        section = ""
        for line in text.splitlines():
            if line.startswith("["):
                section = line
            key = line.partition("=")[0]
            if section == "[Service]" and key.isalnum() and "=" in line and not _LEFT_OUT.fullmatch(key):
                found.append(line)
    return tuple(found)


def of_inventory(inventory: Inventory) -> tuple[str, ...]:
    """What the service's unit and its drop-ins will ask of systemd."""
    names = ("ddtree-vllm.service", f"{inventory.install.build}.conf", "loopback.conf")
    texts = (project_path("systemd", name).read_text(encoding="utf-8") for name in names)
    return settings(Template(text).safe_substitute(home="yes") for text in texts)


def command(asked: tuple[str, ...], user: str) -> str:
    """The remote command: all settings at once, and only if that fails, each group of them."""
    grouped: dict[str, list[str]] = {}
    for setting in asked:
        key = setting.partition("=")[0]
        grouped.setdefault(next(name for name, keys in _GROUPS if keys.fullmatch(key)), []).append(setting)
    each = (f"try {name} {_words(group)} {_NODES if name == 'devices' else ''}" for name, group in grouped.items())
    replaced = {"USER": shlex.quote(user), "LOOK": shlex.quote(_LOOK), "ALL": _words(asked), "EACH": "\n".join(each)}
    replaced |= _narrowing(grouped.pop(SOFT, []), [setting for group in grouped.values() for setting in group])
    return re.sub(r"\{([A-Z]+)\}", lambda match: replaced[match[1]], _COMMAND)


def _narrowing(soft: list[str], others: list[str]) -> dict[str, str]:
    """The lines that find out which of the soft settings have to go."""

    def lines(template: str) -> list[str]:
        keys = ((setting.partition("=")[0], _words([setting])) for setting in soft)
        return [template.replace("{KEY}", key).replace("{SETTING}", word) for key, word in keys]

    if not soft:
        return {"ALONE": "", "SOFTER": ""}
    # "without" comes first: it takes the arguments as they are.
    softer = [f'try without {_words(others)} "$@"', *lines(_KEPT), f'try softer {_words(others)} "$@"']
    return {"ALONE": "\n".join(lines(_ALONE)), "SOFTER": "\n".join(softer)}


def _words(asked: Iterable[str]) -> str:
    return " ".join(f"-p {shlex.quote(setting)}" for setting in asked)


def parse(text: str) -> Confinement | None:
    """Reads the command's sections; None where no systemd runs."""
    found = sections(text)
    account = found.pop("account", [])
    if not account:
        return None
    trials = tuple(_trial(name, lines) for name, lines in found.items())
    good = {trial.group for trial in trials if trial.code == 0}

    def heard(*groups: str) -> list[str]:
        """What the first of these units said that ran."""
        return next((found[group] for group in groups if group in good), [])

    limits = {match[1]: match[2] for line in heard("all", "limits") if (match := _LIMIT.match(line))}
    opened = (line.split(" ", 2)[1:] for line in heard("all", "devices") if line.startswith("open "))
    return Confinement(
        account=account[0],
        trials=trials,
        opened=tuple((path, said.rpartition(": ")[2]) for path, said in opened),
        memlock=_number(limits.get("locked memory")),
        nofile=_number(limits.get("open files")),
    )


def _trial(name: str, lines: list[str]) -> Trial:
    said = [line for line in lines if not line.startswith(("Max ", "open ", "exit "))]
    code = int(lines[-1].removeprefix("exit ")) if lines and lines[-1].startswith("exit ") else -1
    return Trial(name, code, "" if code == 0 else " ".join(said)[-300:])


def _number(text: str | None) -> int | None:
    return None if text == "unlimited" else int(text or 0)


def read(transport: Transport, inventory: Inventory) -> Confinement | None:
    """Needs root. Takes a fraction of a second per transient unit."""
    return parse(transport.run(command(of_inventory(inventory), inventory.user), sudo=True).stdout)


def softer(transport: Transport, inventory: Inventory) -> tuple[str, ...]:
    """The settings that a unit on this host has to do without; none where that is not known, or helps nothing."""
    found = read(transport, inventory)
    return (found.softer if found else None) or ()
