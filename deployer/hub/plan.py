"""What fetching from the hub would do: which files the host lacks, the folder they become, the link to it."""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote

from deployer.errors import PreflightError
from deployer.hub import job, judge, state
from deployer.hub.request import Request, requests
from deployer.hub.state import Record, State
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.plan.step import Plan, Progress, Step
from deployer.push.model import Model
from deployer.push.pace import amount
from deployer.push.plan import Found, absent, link_step, look, publish_step, refuse_folder
from deployer.transport.base import Transport


def plan(inventory: Inventory, transport: Transport, *, verify: bool = False) -> Plan:
    """The steps for all that the inventory leaves to the host; none when that is nothing. Reads, changes nothing.
    `verify`: every byte that is there is read again.

    Raises PreflightError when there is no release yet: the engine's own huggingface_hub does the fetching.
    """
    layout = Layout.of(inventory)
    steps = [step for request in requests(inventory) for step in _steps(transport, layout, request, verify)]
    return Plan(transport.name, tuple(steps))


def _steps(transport: Transport, layout: Layout, request: Request, verify: bool) -> list[Step]:
    found = state.read(transport, layout, request)
    model = found.record.model(request) if found.record else None
    if model and not found.active:
        there = look(transport, layout, model, request.link, anew=verify)
        refuse_folder(transport, request.link, there)
        if not absent(model, there):
            return [
                Step("push", _title(request), f"{_pin(request, found.record)}: every file is there, checked"),
                _publish(transport, layout, request, model, there),
                link_step(transport, layout, model, request.link, there),
            ]
    python = _python(transport, layout)
    return [
        Step("push", _title(request), _reason(request, found), _fetching(transport, layout, request, python)),
        Step("push", f"publish {request.hub.repo}", "after the fetch", _later(transport, layout, request, _publish)),
        Step("push", f"point {request.link} there", "after the fetch", _later(transport, layout, request, _link)),
    ]


def _fetching(transport: Transport, layout: Layout, request: Request, python: str) -> Callable[[Progress], None]:
    def action(progress: Progress) -> None:
        record = state.read(transport, layout, request).record
        model = record.model(request) if record else None
        have = look(transport, layout, model, request.link).stored if model else frozenset[str]()
        job.run(transport, layout, request, python, have, progress)
        fetched = _record(transport, layout, request)
        progress.say(_pin(request, fetched))

    return action


def _publish(transport: Transport, layout: Layout, request: Request, model: Model, there: Found) -> Step:
    """As a pushed one is published, after the same checks."""
    step = publish_step(transport, layout, model, there)
    if step.action is None:
        return step
    publish = step.action

    def action(progress: Progress) -> None:
        judge.check(transport, layout, request, model)
        publish(progress)

    return Step(step.verb, step.title, step.reason, action)


Later = Callable[[Transport, Layout, Request, Model, Found], Step]


def _later(transport: Transport, layout: Layout, request: Request, step: Later) -> Callable[[Progress], None]:
    """The action of a step that is decided when the model is there."""

    def action(progress: Progress) -> None:
        model = _record(transport, layout, request).model(request)
        assert model is not None, "a fetch that is done knows every file's SHA-256"
        decided = step(transport, layout, request, model, look(transport, layout, model, request.link))
        if decided.action:
            decided.action(progress)
        else:
            progress.say(decided.reason)

    return action


def _link(transport: Transport, layout: Layout, request: Request, model: Model, there: Found) -> Step:
    refuse_folder(transport, request.link, there)
    return link_step(transport, layout, model, request.link, there)


def _record(transport: Transport, layout: Layout, request: Request) -> Record:
    record = state.read(transport, layout, request).record
    assert record is not None, "a fetch that is done has left its record"
    return record


def _title(request: Request) -> str:
    return f"fetch the {request.kind} {request.hub.repo} from the hub"


def _reason(request: Request, found: State) -> str:
    if found.active:
        far = f"{amount(found.status.done)} of {amount(found.status.total)}" if found.status else "it begins"
        return f"a fetch is under way there ({far}): met again"
    if found.record is None:
        return f"{_pin(request, None)}; nothing of it was fetched yet"
    begun = found.status.done if found.status else 0
    return (
        f"{_pin(request, found.record)}; not all of {len(found.record.files)} files ({amount(found.record.size)}) are "
        f"there whole{f', {amount(begun)} were when it ended: continued' if begun else ''}"
    )


def _pin(request: Request, record: Record | None) -> str:
    """Which commit, and why that one."""
    revision = request.hub.revision
    if request.pinned:
        return f"commit {revision[:12]}"
    if record is None:
        return f"{revision} is looked up there once, and stays at the commit that it is then"
    return f"{revision} is commit {record.commit} here since {record.when}; [{request.section}] revision names another"


def _python(transport: Transport, layout: Layout) -> str:
    """The engine's Python: of the current release, by its own name, whatever becomes current meanwhile."""
    command = f'python=$(readlink -f {quote(layout.current)})/venv/bin/python; test -x "$python" && echo "$python"'
    found = transport.run(command, sudo=True, check=False).stdout.strip()
    if not found:
        raise PreflightError(
            "a model on the hub is fetched by the installed engine's huggingface_hub, and there is no release yet",
            where=f"{transport.name}:{layout.current}",
            remedy=f"ddtree-deploy install {transport.name}, then push again; `up` does it in that order",
        )
    return found
