"""A connection that breaks where a test wants it to: a proxy on loopback in front of a real server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ("Cut", "Proxy", "proxy")

_CHUNK = 1 << 16


@dataclass
class Cut:
    """What is lost of a request with ``sign`` in it, and how often still."""

    sign: bytes
    how: Literal["request", "answer"]
    left: int


class Proxy:
    """Forwards connections to ``port`` of this machine until it is told to cut some."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._lock = threading.Lock()
        self._cuts: list[Cut] = []
        self._open: list[socket.socket] = []
        self.cut_count = 0
        self.away = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, sign: bytes, how: Literal["request", "answer"], times: int = 1) -> None:
        """The next ``times`` requests with ``sign`` in them are lost: before they reach the server, or after
        it has answered."""
        with self._lock:
            self._cuts.append(Cut(sign, how, times))

    def heal(self) -> None:
        """Nothing is cut any more."""
        with self._lock:
            self._cuts.clear()
            self.away = False

    def answered(self) -> None:
        """A request whose answer is to be lost has been answered."""

    def found(self, data: bytes) -> Cut | None:
        """What is to be lost of that request."""
        with self._lock:
            for cut in self._cuts:
                if cut.left and cut.sign in data:
                    cut.left -= 1
                    self.cut_count += 1
                    return cut
        return None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self.away:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._open += [client, server]
            lost = threading.Event()
            for source, sink, is_request in ((client, server, True), (server, client, False)):
                arguments = (source, sink, is_request, lost)
                threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, is_request: bool, lost: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                if is_request:
                    cut = self.found(data)
                    if cut is not None and cut.how == "request":
                        break
                    if cut is not None:
                        lost.set()
                elif lost.is_set():
                    self.answered()
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends every connection."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            for end in self._open:
                end.close()


@contextlib.contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """One that is closed in the end."""
    made = Proxy(port)
    try:
        yield made
    finally:
        made.close()
