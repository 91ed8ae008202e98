"""The fetch as a transient unit on the host: started, met again after a cut, and watched until it has ended.

It belongs to the host's systemd, not to our connection: that may break, and this program may be killed.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

from deployer.errors import DeployError
from deployer.hub import failure, state
from deployer.hub.request import RUN, Request
from deployer.hub.state import State
from deployer.plan.layout import Layout
from deployer.plan.step import Progress
from deployer.push import remote
from deployer.push.pace import Meter
from deployer.push.patience import Patience, attempts
from deployer.transport.base import Transport

EVERY = 1.0  # seconds between two looks
ATTEMPTS, LONGEST = 8, 16.0  # of the host's side, in a row that brought nothing; seconds between two
RESERVE = 256 << 20  # bytes that stay free
PIECE = 1 << 20  # bytes that are written at once; what is lost of each file when a line breaks
# What runs there, the one that is started first; it imports the others from beside it.
PROGRAM = (
    *(Path(__file__).with_name(f"remote_{part}.py") for part in ("fetch", "files", "failure")),
    Path(remote.__file__),
)
STARTS = 3  # in a row that brought nothing


def run(
    transport: Transport, layout: Layout, request: Request, python: str, have: Iterable[str], progress: Progress
) -> None:
    """Fetches; meets a fetch that is under way. `have` are the digests that need not be fetched.

    Raises TransferError or PreflightError that says why not. However it is left, the host's side goes on.
    """
    starts, best = 0, -1
    while True:
        found = state.read(transport, layout, request)
        if found.active:
            progress.say("a fetch is under way there: met again")
        else:
            start(transport, layout, request, python, have)
        ended = watched(transport, layout, request, progress)
        status = ended.status
        if status and status.state == "done":
            return
        if status and status.state == "failed":
            raise failure.explained(transport, request, layout.store, status)
        done = status.done if status else 0
        starts, best = (1, done) if done > best else (starts + 1, best)
        if starts >= STARTS:
            raise failure.vanished(transport, request)
        progress.say("it ended without a word: killed, or the host was restarted; it is begun again where it was")


def start(transport: Transport, layout: Layout, request: Request, python: str, have: Iterable[str]) -> None:
    """Writes what it needs and starts the unit. The token goes by stdin into a file that it removes when read."""
    folder, hub = request.folder(layout), request.hub
    token, place = request.token(), f"{RUN}/{request.unit}.token"
    spec = {
        "repo": hub.repo,
        "revision": hub.revision,
        "endpoint": hub.endpoint,
        "only": list(request.only),
        "store": layout.store,
        "have": sorted(have),
        "token": place if token else None,
        "reserve": RESERVE,
        "piece": PIECE,
        "attempts": ATTEMPTS,
        "longest": LONGEST,
    }
    program = f"{folder}/{PROGRAM[0].name}"
    texts = {path.name: path.read_text(encoding="utf-8") for path in PROGRAM}
    state.REMOTE.ask(transport, "prepare", folder, {"spec.json": json.dumps(spec), **texts})
    if token:
        transport.write(token.reveal().encode(), place, mode=0o600, sudo=True)
    words = ["systemd-run", "--quiet", "--collect", f"--unit={request.unit}"]
    words += [f"--description=Fetches {hub.repo} from the hub", python, "-I", program, folder]
    try:
        transport.run(shlex.join(words), sudo=True)
    except BaseException:  # an interrupt, too, leaves no token there
        with suppress(DeployError):  # what broke is the news, not that this did not go either
            transport.run(f"rm -f {shlex.quote(place)}", sudo=True, check=False)
        raise


def watched(transport: Transport, layout: Layout, request: Request, progress: Progress) -> State:
    """Shows how far it is until it has ended. A broken line is connected anew: nothing is lost by that."""
    patience, looks = Patience(), count()
    patience.found(next(looks))  # it was reached a moment ago
    for attempt in attempts(transport, patience, progress):
        with attempt:
            return _watched(transport, layout, request, progress, patience, looks)
    raise AssertionError("attempts end by returning or raising")


def _watched(
    transport: Transport,
    layout: Layout,
    request: Request,
    progress: Progress,
    patience: Patience,
    looks: Iterator[int],
) -> State:
    meter = Meter(progress, total=0)
    try:
        while (found := patience.reached(partial(state.read, transport, layout, request))).active:
            patience.found(next(looks))
            if found.status and found.status.total:
                meter.total = found.status.total
                meter.bytes(found.status.done, found.status.total)
            time.sleep(EVERY)
    except KeyboardInterrupt:
        progress.say(f"the fetch goes on there; the same command meets it again, systemctl stop {request.unit} ends it")
        raise
    if found.status:
        progress.bytes(found.status.done, max(found.status.total, 1))
    return found
