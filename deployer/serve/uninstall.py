"""`uninstall`: the host as it was before, and a list of what went."""

from __future__ import annotations

from shlex import quote

from deployer.fleet import parting
from deployer.hub.request import RUN
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.plan.step import Plan, Progress, Step
from deployer.push import staged
from deployer.serve.records import Records
from deployer.serve.service import Service
from deployer.transport.base import Transport
from deployer.transport.pct import PctTransport


def plan(inventory: Inventory, transport: Transport, *, models: bool = False) -> Plan:
    """Everything this program put on the host; with `models` the pushed models as well. Nothing else is touched."""
    service = Service.of(inventory, transport)
    unit, *others = steps(service, models=models)
    return Plan(inventory.name, (parting.ended(unit, inventory, service), *others))


def steps(service: Service, *, models: bool = False) -> tuple[Step, ...]:
    """The same for any unit that this program put on a host; its end comes first."""
    transport, layout = service.transport, service.layout
    present = _present(transport, (*_files(layout), *_folders(layout, models)))
    account = transport.run(f"id -u {quote(layout.user)}", check=False).ok
    paths = _paths(transport, layout, present)
    return (
        _unit(service, layout),
        *_fetches(transport, layout),
        paths,
        _account(transport, layout, account),
        *_stage(transport),
    )


def _files(layout: Layout) -> tuple[str, ...]:
    return (*layout.way_back_files, layout.unit_file, f"{layout.unit_file}.d", layout.config, layout.environment)


def _folders(layout: Layout, models: bool) -> tuple[str, ...]:
    everything = (layout.releases, layout.current, layout.wheels, layout.state, *([layout.models] if models else []))
    return (*everything, layout.state_dir, layout.cache_dir)


def _present(transport: Transport, paths: tuple[str, ...]) -> tuple[str, ...]:
    words = " ".join(quote(path) for path in paths)
    look = f'for p in {words}; do if [ -e "$p" ] || [ -L "$p" ]; then echo "$p"; fi; done'
    return tuple(transport.run(look, sudo=True).stdout.splitlines())


def _unit(service: Service, layout: Layout) -> Step:
    state = service.state()
    if not state.installed:
        return Step("uninstall", "service", f"{layout.unit} is not installed")

    def remove(progress: Progress) -> None:
        service.stop()
        Records(service.transport, layout).take_away()
        progress.say(f"removed {layout.unit}")

    return Step("uninstall", "service", f"{layout.unit} is {state.active}", remove)


def _fetches(transport: Transport, layout: Layout) -> tuple[Step, ...]:
    """What is still being fetched from the hub: it would write on into folders that go."""
    pattern = quote(f"{layout.service}-fetch-*.service")
    listed = transport.run(f"systemctl list-units --plain --no-legend {pattern}", check=False).stdout
    units = [line.split()[0] for line in listed.splitlines() if line.strip()]
    if not units:
        return ()

    def stop(progress: Progress) -> None:
        for unit in units:
            # Its token's file: it removes that itself, unless it is stopped before it has read it.
            transport.run(f"systemctl stop {quote(unit)}; rm -f {quote(f'{RUN}/{unit}.token')}", sudo=True)
            progress.say(f"stopped {unit}")

    return (Step("uninstall", "fetch", f"under way: {', '.join(units)}", stop),)


def _paths(transport: Transport, layout: Layout, present: tuple[str, ...]) -> Step:
    if not present:
        return Step("uninstall", "files", "nothing of ours is on the host")

    def remove(progress: Progress) -> None:
        for path in present:
            transport.run(f"rm -rf {quote(path)}", sudo=True, timeout=600.0)
            progress.say(f"removed {path}")
        transport.run("systemctl daemon-reload", sudo=True, check=False)
        # Only when empty: what others put there stays.
        for folder in (layout.root, layout.etc):
            if transport.run(f"rmdir {quote(folder)} 2>/dev/null", sudo=True, check=False).ok:
                progress.say(f"removed {folder}")

    return Step("uninstall", "files", f"{len(present)} files and folders: {', '.join(present)}", remove)


def _stage(transport: Transport) -> tuple[Step, ...]:
    """What a push that broke off left on the Proxmox host, where files go by one."""
    if not isinstance(transport, PctTransport):
        return ()
    folder, node = transport.stage("").rstrip("/"), transport.node
    if not node.run(f"test -e {quote(folder)}", sudo=True, check=False).ok:
        return (Step("uninstall", "stage", f"nothing of ours is on {node.name}"),)

    def remove(progress: Progress) -> None:
        staged.clear(transport)
        progress.say(f"removed {node.name}:{folder}")

    return (Step("uninstall", "stage", f"a push broke off: {node.name}:{folder}", remove),)


def _account(transport: Transport, layout: Layout, exists: bool) -> Step:
    if not exists:
        return Step("uninstall", "account", f"{layout.user} does not exist")

    def remove(progress: Progress) -> None:
        transport.run(f"PATH=$PATH:/usr/sbin userdel {quote(layout.user)}", sudo=True)
        progress.say(f"removed the account {layout.user}")

    return Step("uninstall", "account", f"{layout.user} runs nothing else", remove)
