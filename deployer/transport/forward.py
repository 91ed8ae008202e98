"""A listening port on the laptop whose connections come out on the host's side."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Protocol

from deployer.errors import UsageError


class Socket(Protocol):
    """What a TCP socket and an SSH channel have in common."""

    def recv(self, size: int, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class _Server(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def listening(local_port: int, reach: Callable[[], Socket]) -> Iterator[int]:
    """Listens on 127.0.0.1:<local_port> (0: any free one) and joins each connection to a fresh `reach()`; yields the
    port.

    A connection that `reach` cannot make is closed at once: the client sees it, later ones are tried anew.
    """

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(Exception):
                _join(self.request, reach())

    try:
        server = _Server(("127.0.0.1", local_port), Handler)
    except OSError as error:
        raise UsageError(
            f"port {local_port} cannot be opened here: {error.strerror}", where="127.0.0.1", remedy="choose another one"
        ) from error
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def _join(near: Socket, far: Socket) -> None:
    """Copies both ways until both sides have ended."""
    back = threading.Thread(target=_copy, args=(far, near), daemon=True)
    back.start()
    _copy(near, far)
    back.join()
    far.close()


def _copy(source: Socket, sink: Socket) -> None:
    with suppress(OSError, EOFError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR)
