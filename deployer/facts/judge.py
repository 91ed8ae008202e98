"""From facts to findings. Pure: the same facts and inventory always give the same findings."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.facts.finding import Finding, Level, judged
from deployer.facts.gather import Drafter, Facts
from deployer.facts.judge_gpu import gpu_findings
from deployer.facts.judge_host import host_findings
from deployer.facts.judge_room import room_findings
from deployer.facts.judge_systemd import unit_findings
from deployer.facts.target import Target
from deployer.inventory.model import Inventory


def judge(facts: Facts, inventory: Inventory) -> tuple[Finding, ...]:
    """Every finding, in the order an operator reads them: machine, unit, room, GPUs, what runs, models."""
    return (
        *host_findings(facts.host, facts.skew, inventory),
        *unit_findings(facts.confinement),
        *room_findings(facts.room, inventory, deployed=facts.service.current is not None),
        *gpu_findings(facts, inventory),
        *_running(facts, inventory),
        *_drafter(facts.drafter, inventory),
        *_target(facts.target, facts.drafter, inventory),
    )


def _running(facts: Facts, inventory: Inventory) -> Iterator[Finding]:
    state, holder = facts.service, facts.port_holder
    installed = f"release {state.current}" if state.current else "no release yet"
    yield Finding(Level.OK, "service", f"{inventory.service}: {state.active} ({state.sub}), {installed}")
    if state.restarts >= 3:
        remedy = f"see why: ddtree-deploy logs {inventory.name}"
        yield Finding(Level.WARN, "restarts", f"systemd restarted it {state.restarts} times", remedy)
    subject = f"port {inventory.serve.port}"
    if holder is None or holder.unit == f"{inventory.service}.service":
        yield Finding(Level.OK, subject, "ours" if holder else "free")
    elif holder.unit:
        yield Finding(
            Level.WARN, subject, f"held by {holder}", f"serve with --replace {holder.unit}, or change [serve] port"
        )
    else:
        yield Finding(Level.FAIL, subject, f"held by {holder}", "stop it, or change [serve] port")


def _drafter(drafter: Drafter, inventory: Inventory) -> Iterator[Finding]:
    if drafter.failure is not None:
        yield Finding(Level.FAIL, "drafter", drafter.failure.what, drafter.failure.remedy)
        return
    if hub := inventory.drafter.hub:
        seen = (
            f"{hub.repo} at {hub.revision}: the host fetches it after the install, held against {drafter.profile.name}"
        )
        yield Finding(Level.OK, "drafter", seen)
        return
    seen = f"{drafter.parameters / 1e6:.2f} M parameters, {drafter.size / 1e6:.1f} MB, fits {drafter.profile.name}"
    yield Finding(Level.OK, "drafter", seen)


def _target(target: Target | None, drafter: Drafter, inventory: Inventory) -> Iterator[Finding]:
    if target is None and inventory.target.hub:
        hub = inventory.target.hub
        yield Finding(Level.OK, "target", f"{hub.repo} at {hub.revision}: the host fetches it after the install")
        return
    if target is None:
        where = inventory.target.push or f"{inventory.target.path} on the host"
        yield Finding(Level.FAIL, "target", f"no config.json in {where}", "put the model there or correct [target]")
        return
    config, shapes = drafter.profile.config, drafter.profile.shapes
    held = (
        ("num_hidden_layers", config.num_target_layers, target.layers),
        ("hidden_size", shapes.hidden, target.hidden),
        ("vocab_size", config.vocab_size, target.vocabulary),
    )
    wrong = [
        f"{key} is {found}, the drafter wants {wanted}" for key, wanted, found in held if found not in {None, wanted}
    ]
    seen = "; ".join(wrong) or f"{target.model_type}, {target.layers} layers, hidden {target.hidden}"
    yield judged(not wrong, "target", seen, "use the target that the drafter was trained for")
