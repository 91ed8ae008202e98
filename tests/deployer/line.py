"""A line to a server that breaks where a test wants it to: a relay on loopback that counts what it carries."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Line:
    """Carries connections to `port`. The first one that comes to `cuts[0]` bytes towards the server ends there, then the
    first later one that comes to `cuts[1]`, and so on; with `hold`, it carries nothing more then but stays open.
    `client`: how the greeting of those that count begins; all others are whole. A connection that ends earlier, as on a
    loaded machine, uses up none.
    """

    def __init__(self, port: int, cuts: list[int], *, client: bytes = b"", hold: bool = False) -> None:
        self._target, self._cuts, self._client, self._hold = port, list(cuts), client, hold
        self.made: list[int] = []  # the cuts so far
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            threading.Thread(target=self._relay, args=(client, server, len(self.made)), daemon=True).start()

    def _relay(self, client: socket.socket, server: socket.socket, turn: int) -> None:
        """`turn`: which cut is this connection's, if no other came to it first."""
        carried, counts, held = 0, True, False
        with suppress(OSError, ValueError), selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in ready.select():
                    room, ours = 1 << 16, key.fileobj is client
                    if ours and counts and (held or len(self.made) == turn < len(self._cuts)):
                        room = min(room, self._cuts[turn] - carried)
                    if room == 0 and not held:
                        self.made.append(carried)
                        held = True
                    if held and self._hold and ours:
                        ready.unregister(client)
                        continue
                    data = key.fileobj.recv(room) if room else b""  # type: ignore[union-attr]
                    if not data:
                        raise OSError("cut, or ended")
                    key.data.sendall(data)
                    if ours:
                        counts = counts and (carried > 0 or data.startswith(self._client))
                        carried += len(data)
        for end in (client, server):
            with suppress(OSError):  # with a reset, as when the way is gone
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()

    def close(self) -> None:
        self._server.close()
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def broken(port: int, cuts: list[int], *, client: bytes = b"", hold: bool = False) -> Iterator[Line]:
    """A line for the length of a block."""
    line = Line(port, cuts, client=client, hold=hold)
    try:
        yield line
    finally:
        line.close()
