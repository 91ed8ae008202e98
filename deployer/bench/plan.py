"""What `bench` would measure on one host, and what it knows already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from deployer.bench import arms as arm_room
from deployer.bench.arms import Arm
from deployer.bench.estimate import estimate
from deployer.bench.measuring import Measuring, short
from deployer.bench.model import ArmLine, Cell, Conditions
from deployer.bench.place import Bench
from deployer.bench.result import judge
from deployer.bench.run import Runner
from deployer.bench.store import Store
from deployer.bench.sweep import Sweep, loads, sweep_of
from deployer.errors import PreflightError
from deployer.facts import confinement, gpu, ports, target
from deployer.facts.gpu import Gpus
from deployer.install.release import Folder
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.plan.step import Plan, Step
from deployer.push.published import drafter_dir, target_dir
from deployer.serve import account
from deployer.serve.decoding import autoregressive, drafter_width
from deployer.serve.preflight import models_are_there
from deployer.serve.render import Engine, local_secrets
from deployer.serve.service import Service
from deployer.transport.base import Transport

_HELD_MIB = 1024


@dataclass(frozen=True)
class Scene:
    """What a bench is made of: its arms and cells, where they run and where their results are kept."""

    runner: Runner
    store: Store
    sweep: Sweep
    arms: tuple[Arm, ...]
    cells: tuple[Conditions, ...]
    gpus: Gpus
    release: str

    @property
    def lines(self) -> tuple[ArmLine, ...]:
        return tuple(arm.line for arm in self.arms)

    def judge(self, cells: tuple[Cell, ...]) -> None:
        """Of arms that verify as many tokens at every batch size, and as many as are drafted. See deployer.bench.result."""
        even = (arm.line for arm in self.arms if not arm.decoding.table)
        judge(even, cells, drafter_width(self.runner.inventory))

    def known(self) -> tuple[Cell, ...]:
        """What was measured of it until now."""
        return self.store.read(self.cells)


def scene(inventory: Inventory, transport: Transport, sweep: Sweep | None = None, *, mtp: bool = False) -> Scene:
    """Reads what is installed. `mtp` adds the target's own head, if it has one, to the arms that nobody named.

    Raises PreflightError when nothing is installed, UsageError for an arm that cannot be.
    """
    sweep = sweep or sweep_of(inventory)
    layout, bench = Layout.of(inventory), Bench.of(inventory)
    release = Service.of(inventory, transport).state().current
    if release is None:
        raise PreflightError("no release is installed", where=transport.name, remedy="ddtree-deploy install first")
    venv = Folder(layout.release(release)).venv
    folders = target_dir(inventory, transport), drafter_dir(inventory, transport)
    engine = Engine(venv, *folders, autoregressive(), confinement.softer(transport, inventory))
    models_are_there(transport, engine.target, engine.drafter)
    gpus = gpu.read(transport) if inventory.install.build == "cuda" else Gpus()
    names = sweep.arms or arm_room.usual(inventory, mtp=mtp and _has_head(transport, engine.target))
    secrets = local_secrets(inventory)
    made = arm_room.arms(inventory, bench, engine, names, nodes=gpus.nodes, secrets=secrets)
    store = Store(transport, layout, release, {arm.name: arm for arm in made})
    template = any(prompts.chat for prompts in sweep.sets) and _has_template(transport, engine.target)
    cells = sweep.conditions([arm.name for arm in made], template=template)
    return Scene(Runner(inventory, transport, bench, engine), store, sweep, made, cells, gpus, release)


def _has_head(transport: Transport, folder: str) -> bool:
    found = target.read(transport, folder)
    return found is not None and found.mtp_layers > 0


def _has_template(transport: Transport, folder: str) -> bool:
    command = (
        f"cd {quote(folder)} && {{ test -e chat_template.jinja || test -e chat_template.json || "
        "grep -q chat_template tokenizer_config.json; }"
    )
    return transport.run(command, sudo=True, check=False).ok


def plan(
    inventory: Inventory,
    transport: Transport,
    *,
    take_gpu: bool = False,
    sweep: Sweep | None = None,
    mtp: bool = False,
) -> Plan:
    """The cells that were not measured with this very release, configuration and prompts."""
    here = scene(inventory, transport, sweep, mtp=mtp)
    known = here.known()
    action = measuring(here, known)
    missing = [cell for load in action.starts for cell in load.cells]
    done = tuple(_done(arm.name, known, missing) for arm in here.arms if any(_of(arm.name, known)))
    left = here.runner.left_behind()
    if left:
        done += (Step("bench", "clear", "an interrupted bench left its engine", lambda _: here.runner.clear()),)
    if not missing:
        here.judge(known)
        return Plan(inventory.name, done)
    names = ", ".join(dict.fromkeys(load.arm for load in action.starts))
    cost = estimate(action.starts, known, inventory.install.build).text()
    runs = Service.of(inventory, transport).state().running
    ours = left and not runs  # what holds the GPUs is about to go
    held = None if ours else _held(here.gpus, runs)
    if held and not take_gpu:
        why = f"skipped: {held}; --take-gpu stops the service for the bench and starts it again. It takes {cost}"
        return Plan(inventory.name, (*done, Step("bench", names, why)))
    if held:
        _held_by_the_service(here, runs, transport, held)
    _port_is_free(here, transport)
    why = f"not measured with this release and configuration: {cost}"
    step = Step("bench", names, why, replace(action, stops_service=bool(held)))
    return Plan(inventory.name, (account.step(Layout.of(inventory), transport), *done, step))


def measuring(here: Scene, known: tuple[Cell, ...]) -> Measuring:
    """What is missing, as an action that leaves the service alone."""
    there = {cell.conditions for cell in known}
    starts = loads((cell for cell in here.cells if cell not in there), one_load=here.sweep.one_load)
    return Measuring(here.runner, here.store, here.sweep, starts, known, stops_service=False, ended=here.judge)


def _of(arm: str, cells: Iterable[Cell]) -> Iterator[Cell]:
    return (cell for cell in cells if cell.conditions.arm == arm)


def _done(arm: str, known: Sequence[Cell], missing: Sequence[Conditions]) -> Step:
    cells, left = list(_of(arm, known)), sum(cell.arm == arm for cell in missing)
    share = f" {len(cells)} of {len(cells) + left}" if left else ""
    return Step("bench", arm, f"measured{share}: {short(cells[0])}")


def _held(gpus: Gpus, runs: bool) -> str | None:
    """A service that has just been started holds nothing yet, and will."""
    busy = [str(card.index) for card in gpus.cards if card.memory_total - card.memory_free > _HELD_MIB]
    if busy:
        return f"GPU {', '.join(busy)} is in use"
    return "the service runs" if runs and gpus.cards else None


def _held_by_the_service(here: Scene, runs: bool, transport: Transport, held: str) -> None:
    """The bench stops the service alone: what somebody else runs on the GPUs is theirs."""
    unit = here.store.layout.unit
    others = [holder for holder in here.gpus.holders if holder.unit not in (None, unit)]
    if others or not runs:
        by = f" by {', '.join(map(str, others))}" if others else f", and not by {unit}, which is stopped"
        raise PreflightError(
            f"{held}{by}", where=transport.name, remedy=f"stop that first: --take-gpu stops nothing but {unit}"
        )


def _port_is_free(here: Scene, transport: Transport) -> None:
    port = here.runner.bench.port
    holder = ports.read(transport, port)
    if holder is not None and holder.unit != here.runner.bench.layout.unit:
        raise PreflightError(
            f"port {port}, which the bench uses, is taken by {holder}", where=transport.name, remedy="stop it"
        )
