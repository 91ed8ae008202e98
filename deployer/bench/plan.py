"""What `bench` would measure on one host, and what it knows already."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

from deployer.bench.arms import Arm, Bench, arms
from deployer.bench.prompts import as_jsonl, texts
from deployer.bench.result import ArmResult, judge
from deployer.bench.run import Runner
from deployer.bench.store import Store
from deployer.errors import PreflightError
from deployer.facts import confinement, gpu, ports
from deployer.facts.gpu import Gpus
from deployer.install.release import Folder
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.plan.step import Plan, Progress, Step
from deployer.push.published import drafter_dir, target_dir
from deployer.serve import account
from deployer.serve.decoding import autoregressive
from deployer.serve.preflight import models_are_there
from deployer.serve.render import Engine, local_secrets
from deployer.serve.service import Service
from deployer.serve.switch import wait_for_memory
from deployer.serve.way_back import WayBack
from deployer.transport.base import Transport

_HELD_MIB = 1024
_LONGEST = 6 * 3600.0  # seconds, in which a bench has ended or is lost


@dataclass(frozen=True)
class Scene:
    """What a bench is made of: its arms, where they run and where their results are kept."""

    runner: Runner
    store: Store
    arms: tuple[Arm, ...]


def scene(inventory: Inventory, transport: Transport, nodes: tuple[str, ...] = ()) -> Scene:
    """Reads what is installed. Raises PreflightError when nothing is."""
    layout, bench = Layout.of(inventory), Bench.of(inventory)
    release = Service.of(inventory, transport).state().current
    if release is None:
        raise PreflightError("no release is installed", where=transport.name, remedy="ddtree-deploy install first")
    venv, prompts = Folder(layout.release(release)).venv, texts(inventory)
    jsonl = as_jsonl(prompts, inventory.bench.num_prompts)
    target, drafter = target_dir(inventory, transport), drafter_dir(inventory, transport)
    engine = Engine(venv, target, drafter, autoregressive(), confinement.softer(transport, inventory))
    models_are_there(transport, engine.target, engine.drafter)
    runner = Runner(inventory, transport, bench, engine, prompts, jsonl)
    made = arms(inventory, bench, engine, jsonl, nodes=nodes, secrets=local_secrets(inventory))
    return Scene(runner, Store(transport, layout, release), made)


def plan(inventory: Inventory, transport: Transport, *, take_gpu: bool = False) -> Plan:
    """The arms that were not measured with this very release, configuration and prompts."""
    gpus = gpu.read(transport) if inventory.install.build == "cuda" else Gpus()
    here = scene(inventory, transport, gpus.nodes)
    known = here.store.read(here.arms)
    done = tuple(
        Step("bench", arm.name, f"measured: {_short(known[arm.name])}") for arm in here.arms if arm.name in known
    )
    left = here.runner.left_behind()
    if left:
        done += (Step("bench", "clear", "an interrupted bench left its engine", lambda _: here.runner.clear()),)
    missing = tuple(arm for arm in here.arms if arm.name not in known)
    if not missing:
        judge(tuple(known.values()))
        return Plan(inventory.name, done)
    names = ", ".join(arm.name for arm in missing)
    ours = left and not Service.of(inventory, transport).state().running  # what holds the GPUs is about to go
    if (held := _held(gpus)) and not take_gpu and not ours:
        skipped = Step(
            "bench", names, f"skipped: {held}; --take-gpu stops the service for the bench and starts it again"
        )
        return Plan(inventory.name, (*done, skipped))
    _port_is_free(here, transport)
    action = _Measuring(here, missing, known, stops_service=bool(held))
    cost = f"not measured with this release and configuration; {len(missing)} loads of the model"
    return Plan(
        inventory.name,
        (account.step(Layout.of(inventory), transport), *done, Step("bench", names, cost, action)),
    )


def _short(result: ArmResult) -> str:
    return f"acceptance length {result.acceptance_length:.2f}, TPOT {result.tpot.median:.1f} ms"


def _held(gpus: Gpus) -> str | None:
    busy = [str(card.index) for card in gpus.cards if card.memory_total - card.memory_free > _HELD_MIB]
    return f"GPU {', '.join(busy)} is in use" if busy else None


def _port_is_free(here: Scene, transport: Transport) -> None:
    port = here.runner.bench.port
    holder = ports.read(transport, port)
    if holder is not None and holder.unit != here.runner.bench.layout.unit:
        raise PreflightError(
            f"port {port}, which the bench uses, is taken by {holder}", where=transport.name, remedy="stop it"
        )


def _starting_again(service: Service, runner: Runner) -> str:
    """What the host runs when the bench has ended, or whoever ran it is gone."""
    start = f"systemctl start --no-block {quote(service.layout.unit)}\n"
    return f"#!/bin/sh\n{runner.clearing}\n{start}"


@dataclass(frozen=True)
class _Measuring:
    """The step's action: one arm after the other, each kept as soon as it is measured."""

    here: Scene
    missing: tuple[Arm, ...]
    known: dict[str, ArmResult]
    stops_service: bool

    def __call__(self, progress: Progress) -> None:
        runner = self.here.runner
        service = Service.of(runner.inventory, runner.transport)
        running = self.stops_service and service.state().running
        way = WayBack(runner.transport, service.layout, _LONGEST)
        if running:
            progress.say("stopping the service for the time of the bench")
            way.keep(_starting_again(service, runner))
            service.stop()
        try:
            results = {**self.known, **{arm.name: self._measure(arm, service, progress) for arm in self.missing}}
        finally:
            if running:
                progress.say("starting the service again")
                way.take()
                way.end()
        judge(tuple(results.values()))

    def _measure(self, arm: Arm, service: Service, progress: Progress) -> ArmResult:
        progress.say(f"arm {arm.decoding}")
        if self.stops_service:
            wait_for_memory(service, progress)
        result = self.here.runner.run(arm, progress)
        self.here.store.write(arm, result)
        progress.say(_short(result))
        return result
