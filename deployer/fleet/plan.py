"""What `router up` would do on the router's host: release, account, unit, start, proof; or nothing, and why."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote

from deployer.errors import PreflightError
from deployer.facts import firewall, ports
from deployer.facts import service as facts
from deployer.facts.service import ServiceState
from deployer.fleet.install import Install, desired
from deployer.fleet.inventory import Router, address_of, boxes
from deployer.fleet.render import Files, render
from deployer.fleet.switch import Switch
from deployer.plan.step import Plan, Step
from deployer.serve import account
from deployer.transport.base import Transport

_KNOCK = """
import sys, urllib.error, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for url in sys.argv[1:]:
    try:
        opener.open(url + "/health", timeout=5)
        said = "ok"
    except urllib.error.HTTPError as error:
        said = f"/health answers {error.code}"
    except OSError as error:
        said = str(getattr(error, "reason", error))
    print(url, said)
"""


@dataclass(frozen=True)
class Seen:
    """How the boxes answer to the router's host: URL -> "ok" or why not."""

    said: Mapping[str, str]

    @property
    def healthy(self) -> tuple[str, ...]:
        return tuple(url for url, said in self.said.items() if said == "ok")

    def __str__(self) -> str:
        silent = "; ".join(f"{url}: {said}" for url, said in self.said.items() if said != "ok")
        return f"{len(self.healthy)} of {len(self.said)} boxes answer{f' ({silent})' if silent else ''}"


def knock(transport: Transport, python: str, urls: tuple[str, ...]) -> Seen:
    """Asks every box for its health, from the router's host."""
    words = " ".join(map(quote, urls))
    command = f"{quote(python)} -I - {words}"
    said = transport.run(command, timeout=30.0 + 6 * len(urls), stdin=_KNOCK.encode()).stdout
    answers = dict(line.split(" ", 1) for line in said.splitlines())
    return Seen({url: answers.get(url, "no answer") for url in urls})


def plan(router: Router, transport: Transport) -> Plan:
    """The steps that make the router run as its file says. Reads the host and the boxes' health, changes nothing."""
    members = boxes(router)
    workers = {address_of(box): str(box.serve.address) for box in members}
    install = Install(router, transport, desired(router, transport))
    finished = install.finished()
    files = render(router, install.folder.venv, workers)
    state = facts.read(transport, router.layout)
    reason = _reason(router, transport, state, files, install.release.identifier)
    making = install.steps(finished)
    unit = account.step(router.layout, transport)
    if reason is None:
        running = Step("router", "start", f"running since {state.since or 'its start'}, over {len(workers)} boxes")
        return Plan(router.name, (*making, unit, running))
    seen = _fit(router, transport, tuple(workers))
    switch = Switch(router, transport, files, install.release.identifier, seen.healthy)
    start = Step("router", "start", f"{reason}; {seen}", switch.start)
    return Plan(router.name, (*making, unit, start))


def _reason(router: Router, transport: Transport, state: ServiceState, files: Files, release: str) -> str | None:
    """Why the router has to be started anew; None when it need not be."""
    if not state.installed:
        return f"{router.layout.unit} is not installed"
    if differing := _differing(transport, files.placed(router.layout)):
        return f"{' and '.join(differing)} {'differs' if len(differing) == 1 else 'differ'} from what the inventories ask for"
    if state.current != release:
        return f"release {release} replaces {state.current or 'none'}"
    return None if state.running else f"the router is {state.active}"


def _differing(transport: Transport, texts: Mapping[str, str]) -> tuple[str, ...]:
    paths = " ".join(map(quote, texts))
    found = transport.run(f"sha256sum {paths} 2>/dev/null || true", sudo=True).stdout
    there = {line[66:].strip(): line[:64] for line in found.splitlines()}
    return tuple(path for path, text in texts.items() if there.get(path) != hashlib.sha256(text.encode()).hexdigest())


def _fit(router: Router, transport: Transport, urls: tuple[str, ...]) -> Seen:
    """What can be known before the running router is touched. PreflightError where a new one could not serve."""
    holder = ports.read(transport, router.serve.port)
    if holder is not None and holder.unit != router.layout.unit:
        raise PreflightError(
            f"port {router.serve.port} is taken by {holder}",
            where=transport.name,
            remedy="stop it, or set [serve] port",
        )
    firewall.must_hold(transport, router.install.python, router.layout.unit)
    seen = knock(transport, router.install.python, urls)
    if not seen.healthy:
        raise PreflightError(
            f"no box of group {router.group} answers to the router's host: {seen}",
            where=transport.name,
            remedy="deploy the boxes first; does each one's [serve] allow name this host's address?",
        )
    return seen
