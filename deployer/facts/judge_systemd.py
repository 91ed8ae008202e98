"""Findings about the unit before there is one: what systemd carries out here, and the limits that a service gets."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.facts.confinement import OWN, SOFT, Confinement, Trial
from deployer.facts.finding import Finding, Level, judged

_FINE = frozenset({"softer", "without"})  # trials that look for a way out, not for what is wrong
_STEPS = {205: "LIMITS", 216: "GROUP", 217: "USER", 218: "CAPABILITIES", 226: "NAMESPACE", 228: "SECCOMP"}
_REMEDIES = {
    "namespaces": "on the Proxmox host: pct set ID --features nesting=1, then pct reboot ID",
    "calls": "on the Proxmox host: pct set ID --features nesting=1; a kernel without seccomp cannot run this unit",
    "limits": "on the Proxmox host, in /etc/pve/lxc/ID.conf: lxc.prlimit.memlock: unlimited and "
    "lxc.prlimit.nofile: 1048576, then pct reboot ID",
    "devices": "see `journalctl -b -t systemd` there: the container's cgroup may not be delegated",
    "capabilities": "the container was robbed of capabilities: look for lxc.cap.drop in /etc/pve/lxc/ID.conf",
}
_OTHERWISE = "see why there: journalctl -b -t systemd, and systemd-run --wait --pipe true"


def unit_findings(confinement: Confinement | None) -> Iterator[Finding]:
    """Nothing where systemd could not be asked: the findings on systemd and the account say why."""
    if confinement is None or not confinement.trials:
        return
    whole, *others = confinement.trials
    failed = [trial for trial in others if trial.code != 0 and trial.group not in _FINE and "_" not in trial.group]
    if whole.code == 0:
        yield Finding(Level.OK, "unit", f"systemd carries out its settings, as {confinement.account}")
    elif plain := next((trial for trial in failed if trial.group == "plain"), None):
        remedy = f"apt-get install dbus there; {_OTHERWISE}" if plain.code < OWN else _OTHERWISE
        yield Finding(_level(plain), "unit", f"a transient unit fails with {_ended(plain)}", remedy)
        return
    elif failed:
        yield from (_group(trial, confinement.softer) for trial in failed)
    else:
        seen = f"its settings work one by one, together they end with {_ended(whole)}"
        softer = f"; the service starts without {', '.join(confinement.softer)}" if confinement.softer else ""
        yield Finding(Level.WARN if softer else _level(whole), "unit", f"{seen}{softer}", _OTHERWISE)
    if not any(trial.group == "limits" for trial in failed):
        yield _limits(confinement)


def _group(trial: Trial, softer: tuple[str, ...] | None) -> Finding:
    subject = "ulimits" if trial.group == "limits" else f"unit {trial.group}"
    remedy = _REMEDIES.get(trial.group, _OTHERWISE) if trial.code >= OWN else _OTHERWISE
    if trial.group == SOFT and softer:
        seen = f"a unit that asks for it ends with {_ended(trial)}; the service starts without {', '.join(softer)}"
        return Finding(Level.WARN, subject, seen, f"{remedy}; until then it is confined less")
    return Finding(_level(trial), subject, f"a unit that asks for it ends with {_ended(trial)}", remedy)


def _level(trial: Trial) -> Level:
    """Only a code of systemd's own proves that the service would not start."""
    return Level.FAIL if trial.code >= OWN else Level.WARN


def _ended(trial: Trial) -> str:
    step = f"{trial.code}/{_STEPS[trial.code]}" if trial.code in _STEPS else str(trial.code)
    return f"{step}: {trial.said}" if trial.said else step


def _limits(confinement: Confinement) -> Finding:
    """What a unit really had, after it asked for what the service asks for."""
    memory, files = confinement.memlock, confinement.nofile
    locked = "unlimited" if memory is None else f"{memory // 1024} KiB"
    seen = f"locked memory {locked}, open files {'unlimited' if files is None else files}"
    enough = (memory is None or memory >= 8 << 20) and (files is None or files >= 4096)
    return judged(enough, "ulimits", seen, _REMEDIES["limits"], otherwise=Level.WARN)
