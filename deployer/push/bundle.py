"""Many small files to the host in few streams: a round trip each would take longer than their bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence

from deployer.plan.step import Progress
from deployer.push import digest, file
from deployer.push.file import Sending
from deployer.push.pace import limited
from deployer.push.patience import Patience, attempts
from deployer.transport.base import Transport

SMALL = 1 << 20  # bytes; larger files go one by one, each continued at its own byte
LOAD = 32 << 20  # bytes in one stream, all in memory


def loads(sendings: Iterable[Sending]) -> Iterator[tuple[Sending, ...]]:
    """The files in the order given, as many together as make one stream."""
    load: list[Sending] = []
    size = 0
    for sending in sendings:
        if load and size + sending.size > LOAD:
            yield tuple(load)
            load, size = [], 0
        load.append(sending)
        size += sending.size
    if load:
        yield tuple(load)


def send_load(
    transport: Transport, sendings: Sequence[Sending], progress: Progress, *, limit: float | None = None
) -> None:
    """Sends and publishes the files of one stream; after a broken line those that are not there yet.

    Raises TransferError.
    """
    patience, total = Patience(), sum(sending.size for sending in sendings)
    for attempt in attempts(transport, patience, progress):
        with attempt:
            left = _left(transport, sendings) if patience.begun else list(sendings)
            patience.found(len(sendings) - len(left))
            if left:
                _stream(transport, left, progress, total, limit)


def _left(transport: Transport, sendings: Sequence[Sending]) -> list[Sending]:
    there = digest.there(transport, [sending.remote for sending in sendings])
    return [sending for sending in sendings if there.get(sending.remote, (0, ""))[1] != sending.sha256]


def _stream(
    transport: Transport, sendings: Sequence[Sending], progress: Progress, total: int, limit: float | None
) -> None:
    bodies = [sending.source.read_bytes() for sending in sendings]
    entries = [(sending.remote, len(body), sending.sha256) for sending, body in zip(sendings, bodies, strict=True)]
    done = total - sum(sending.size for sending in sendings)

    def sent(count: int) -> None:
        nonlocal done
        done += count
        progress.bytes(min(done, total), total)

    data = io.BytesIO(json.dumps(entries).encode() + b"\n" + b"".join(bodies))
    result = transport.feed(digest.reader("unpack"), limited(data, limit), sudo=True, stall=file.STALL, sent=sent)
    name = f"{len(sendings)} small files" if len(sendings) > 1 else sendings[0].source.name
    file.check(transport, result, name, sendings[0].remote, "writing")
