"""From a loopback port of the machine into the lab's network namespace, with faults on request.

    python3 -m lab.nsproxy NAMESPACE_FILE HOST PORT FAULTS_FILE

Listens on a free port of 127.0.0.1, prints the port on stdout, joins the namespace and forwards. FAULTS_FILE is read
again whenever it changes; see Faults for what it may say. The file may be absent: then nothing is at fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import socket
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_CHUNK = 65536
_IN_FLIGHT = 64  # chunks under way in each direction: what a delayed link can hold


@dataclass(frozen=True)
class Faults:
    """What the link does wrong. Zero or false: nothing.

    delay_ms: added in each direction. rate_kbps: KiB/s in each direction of each connection. cut_after: bytes (both
    directions together) after which a connection is reset, at both ends. cut_times: how many connections are cut
    before cutting ends; 0 is every one. refuse: new connections are reset at once.
    """

    delay_ms: int = 0
    rate_kbps: int = 0
    cut_after: int = 0
    cut_times: int = 0
    refuse: bool = False

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Raises ValueError for an unknown name or a value of the wrong kind: a fault misspelt would be no fault."""
        raw = json.loads(text)
        kinds = {field.name: type(field.default) for field in fields(cls)}
        if not isinstance(raw, dict) or any(kinds.get(name) is not type(value) for name, value in raw.items()):
            raise ValueError(f"faults {raw!r}: wants {', '.join(f'{n} ({k.__name__})' for n, k in kinds.items())}")
        return cls(**raw)

    def write(self, path: Path) -> None:
        """Publish by rename: the proxy never reads half a file."""
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(asdict(self)))
        part.replace(path)


class Knobs:
    """The faults in force, and how many connections were cut since they last changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._faults = Faults()
        self._cuts = 0

    def now(self) -> Faults:
        try:
            stat = self._path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns)
            if seen != self._seen:
                self._faults, self._seen, self._cuts = Faults.parse(self._path.read_text()), seen, 0
        except FileNotFoundError:
            self._faults, self._seen, self._cuts = Faults(), None, 0
        return self._faults

    def cuts_at(self, carried: int) -> bool:
        """Whether a connection that carried so many bytes is to be cut now; counts the cut if so."""
        faults = self.now()
        due = 0 < faults.cut_after < carried and (not faults.cut_times or self._cuts < faults.cut_times)
        self._cuts += due
        return due


class Connection:
    """One forwarded connection: two pumps that share a byte count."""

    def __init__(self, knobs: Knobs, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self._knobs = knobs
        self._ends = (near, far)
        self._carried = 0
        self._is_cut = False

    async def pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Carry bytes until the source ends or the connection is cut."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT)
        reader = asyncio.create_task(self._read(source, queue))
        try:
            while True:
                due, data = await queue.get()
                if not data:
                    return
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
                if self._cut_by(len(data)):
                    return
                sink.write(data)
                await sink.drain()
                if rate := self._knobs.now().rate_kbps:
                    await asyncio.sleep(len(data) / 1024 / rate)
        finally:
            reader.cancel()

    def _cut_by(self, amount: int) -> bool:
        """Count bytes; cut the connection if it is due. The other way's bytes under way are no second cut."""
        self._carried += amount
        if not self._is_cut and self._knobs.cuts_at(self._carried):
            self._is_cut = True
            for end in self._ends:
                end.transport.abort()
        return self._is_cut

    async def _read(self, source: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        clock = asyncio.get_running_loop().time
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK):
                await queue.put((clock() + self._knobs.now().delay_ms / 1000, data))
        await queue.put((clock(), b""))


async def forward(knobs: Knobs, listener: socket.socket, host: str, port: int) -> None:
    """Serve the listener for ever."""

    async def serve(reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        if knobs.now().refuse:
            near.transport.abort()
            return
        try:
            far_reader, far = await asyncio.open_connection(host, port)
        except OSError:
            near.transport.abort()
            return
        connection = Connection(knobs, near, far)
        ways = ((reader, far), (far_reader, near))
        pumps = [asyncio.create_task(connection.pump(source, sink)) for source, sink in ways]
        # SSH never half-closes: when one direction ends, so does the other.
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for end in (near, far):
            end.close()

    server = await asyncio.start_server(serve, sock=listener)
    async with server:
        await server.serve_forever()


def join_network(namespace: str) -> None:
    """Move this process into a network namespace; sockets it already has stay where they are. Raises OSError."""
    handle = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot join {namespace}")
    os.close(handle)


def main(argv: list[str]) -> None:
    namespace, host, port, faults = argv
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    join_network(namespace)
    print(listener.getsockname()[1], flush=True)
    asyncio.run(forward(Knobs(Path(faults)), listener, host, int(port)))


if __name__ == "__main__":
    main(sys.argv[1:])
