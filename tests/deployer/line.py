"""A line to a server that breaks where a test wants it to: a relay on loopback that counts what it carries."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Line:
    """Carries connections to `port`. The n-th one ends after `cuts[n]` bytes towards the server; with `hold`, it
    carries nothing more then but stays open. Connections beyond `cuts` are whole.
    """

    def __init__(self, port: int, cuts: list[int], *, hold: bool = False) -> None:
        self._target, self.cuts, self.hold = port, list(cuts), hold
        self.carried: list[int] = []  # bytes towards the server, by connection
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
            number = len(self.carried)
            self.carried.append(0)
            limit = self.cuts[number] if number < len(self.cuts) else None
            threading.Thread(target=self._relay, args=(client, server, number, limit), daemon=True).start()

    def _relay(self, client: socket.socket, server: socket.socket, number: int, limit: int | None) -> None:
        with suppress(OSError, ValueError), selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in ready.select():
                    room = 1 << 16
                    if key.fileobj is client and limit is not None:
                        room = min(room, limit - self.carried[number])
                    if room == 0 and self.hold:
                        ready.unregister(client)
                        continue
                    data = key.fileobj.recv(room) if room else b""  # type: ignore[union-attr]
                    if not data:
                        raise OSError("cut, or ended")
                    key.data.sendall(data)
                    self.carried[number] += len(data) if key.fileobj is client else 0
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
def broken(port: int, cuts: list[int], *, hold: bool = False) -> Iterator[Line]:
    """A line for the length of a block."""
    line = Line(port, cuts, hold=hold)
    try:
        yield line
    finally:
        line.close()
