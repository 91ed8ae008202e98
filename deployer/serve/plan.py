"""What `serve` would do on one host: account, files, start, gate; or nothing, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from deployer.errors import PreflightError
from deployer.facts import confinement
from deployer.facts.service import ServiceState
from deployer.fleet.traffic import Traffic, behind
from deployer.install.release import Folder
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.plan.step import Plan, Progress, Step
from deployer.push.published import drafter_dir, fingerprint, target_dir
from deployer.serve import account, decoding, preflight, tuned
from deployer.serve.gate import Wanted
from deployer.serve.options import from_yaml
from deployer.serve.records import SERVING, Record, Records
from deployer.serve.render import Engine, Files, Place, local_secrets, render
from deployer.serve.service import Service
from deployer.serve.switch import Switch
from deployer.transport.base import Transport

SHOWN = 60  # characters of an option's value
_RECONFIGURED = "the inventory asks for another configuration"


def plan(inventory: Inventory, transport: Transport, *, replace: str | None = None, rolling: bool = False) -> Plan:
    """The steps that make the inventory's service run and prove itself. Reads the host, changes nothing there.

    `rolling`: it stops only while another box takes its requests.
    """
    layout = Layout.of(inventory)
    service, records = Service.of(inventory, transport), Records(transport, layout)
    state = service.state()
    if state.current is None:
        raise PreflightError("no release is installed", where=transport.name, remedy="ddtree-deploy install first")
    gpus = preflight.ready(inventory, transport, service_runs=state.running, replace=replace)
    how = decoding.served(inventory)
    confined = confinement.read(transport, inventory)
    softer = (confined.softer if confined else None) or ()
    folder = Folder(layout.release(state.current))
    engine = Engine(folder.venv, target_dir(inventory, transport), drafter_dir(inventory, transport), how, softer)
    preflight.models_are_there(transport, engine.target, engine.drafter)
    files = render(inventory, Place.of_service(inventory), engine, gpus.nodes, local_secrets(inventory))
    active = records.active()
    first = (account.step(layout, transport), *_said(softer), *_decoding(inventory, transport, engine, state.current))
    differing = records.in_place(files)
    reason = _reason(state, active, files, differing)
    if reason == _RECONFIGURED and active is not None:
        reason = f"{reason}: {changes(records.config(active), files.config)}; no push, no install, one stop-start"
    traffic = behind(inventory, strict=rolling)
    if reason is None:
        since = f"running since {state.since or 'its start'}"
        done = Step("serve", "service", f"{since}; deployment {active.id if active else ''} has proved itself")
        return Plan(inventory.name, (*first, Step("serve", "files", "as they should be"), done, *_routed(traffic)))
    preflight.unit_can_start(confined, transport.name)
    new = Record.new(state.current, files, str(how), replace, softer)
    job = _Job(records, files, folder.python, new, active)
    foreign = replace if replace and replace != layout.unit else None
    wanted = Wanted.of(inventory, how)
    switch = Switch(service, records, job.new, active, state.running, wanted, foreign, traffic)
    return Plan(inventory.name, (*first, *job.steps(differing, reason), *_switching(switch, reason)))


def _said(softer: tuple[str, ...]) -> tuple[Step, ...]:
    """A statement where the service is confined less than it should be."""
    if not softer:
        return ()
    why = f"softer than it should be: this host's systemd cannot carry out {', '.join(softer)} (226/NAMESPACE)"
    return (Step("serve", "confinement", f"{why}; ddtree-deploy check says how to mend it"),)


def _decoding(inventory: Inventory, transport: Transport, engine: Engine, release: str) -> tuple[Step, ...]:
    """What decides budgets by batch size: the inventory's table, or a file of `tune`, and whether that was measured with
    what is there now.
    """
    path = inventory.tree.tuned
    if not inventory.tree.enabled:
        return ()
    if path is None:
        said = f"{engine.decoding}: [tree] table"
        return (Step("serve", "decoding", said),) if inventory.tree.table else ()
    made = tuned.read(path)
    others = [f"release {made.release}"] if made.release != release else []
    others += ["another drafter"] if made.drafter != fingerprint(transport, engine.drafter) else []
    old = f", with {' and '.join(others)}: tune again when it can be spared" if others else ""
    on = f" on {made.host}" if made.host != inventory.name else ""
    return (Step("serve", "decoding", f"{engine.decoding}: {path.name}, measured {made.when}{on}{old}"),)


def _reason(state: ServiceState, active: Record | None, files: Files, differing: tuple[str, ...]) -> str | None:
    """Why the service has to be started anew; None when it need not be."""
    if active is None:
        return "no deployment has proved itself yet"
    if active.outcome != SERVING:
        return f"deployment {active.id} ended with: {active.outcome}"
    if active.release != state.current:
        return f"release {state.current} replaces {active.release}"
    if active.files != files.digest:
        return _RECONFIGURED
    if differing:
        return f"changed on the host by hand: {', '.join(differing)}"
    return None if state.running else f"the service is {state.active}"


def changes(before: str, now: str) -> str:
    """Which of vLLM's options differ between two configurations, with their values where these are short."""
    old, new = from_yaml(before), from_yaml(now)
    differing = [key for key in (old | new) if old.get(key) != new.get(key)]
    said = [f"{key} {_short(old, key)} -> {_short(new, key)}" for key in differing]
    return ", ".join(said) or "vLLM's options are the same; the unit, its drop-in or its variables differ"


def _short(options: Mapping[str, Any], key: str) -> str:
    if key not in options:
        return "unset"
    text = json.dumps(options[key], ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


def _routed(traffic: Traffic) -> tuple[Step, ...]:
    """Back among the boxes of routers that a killed deployment had taken it out of."""
    names = traffic.absent()
    if not names:
        return ()
    return (Step("serve", "router", f"gets no requests from {', '.join(names)}", traffic.resume),)


def _switching(switch: Switch, reason: str) -> tuple[Step, ...]:
    back = f"; if it fails, {switch.before.id} comes back" if switch.before else ""
    return (
        Step("serve", "start", reason, switch.start),
        Step(
            "serve",
            "gate",
            f"a known completion and accepted drafts within {switch.wanted.timeout:.0f} s{back}",
            switch.prove,
        ),
    )


@dataclass(frozen=True)
class _Job:
    """A deployment's files on their way to the host; nothing that runs is touched."""

    records: Records
    files: Files
    python: str
    new: Record
    before: Record | None

    def steps(self, differing: tuple[str, ...], reason: str) -> tuple[Step, ...]:
        why = f"{len(differing)} files differ" if differing else reason
        return (Step("serve", "files", f"{why}; vLLM's own parser reads them before anything stops", self._prepare),)

    def _prepare(self, progress: Progress) -> None:
        self.records.save(self.new, self.files, self.before)
        progress.say(f"deployment {self.new.id}")
        config = f"{self.records.path(self.new.id)}/config"
        transport, named = self.records.transport, f"{config}.yaml"
        transport.run(f"ln -sfn config {quote(named)}", sudo=True)
        preflight.options_are_vllms(transport, self.python, named)
