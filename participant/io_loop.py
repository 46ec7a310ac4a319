"""A thread that waits on sockets: a selector, timers, and calls from other threads.

`soon` may be called by any thread; one byte on a socket pair wakes the loop for all calls that wait.
Everything else belongs to the loop's thread.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

__all__ = ("IoLoop",)

_log = logging.getLogger(__name__)


class IoLoop:
    """See the module's head. `selector` holds, as data of each socket, what is called with its mask."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = os.getpid()
        self.selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        self.selector.register(self._wake_out, selectors.EVENT_READ, self._woken)
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._waking = False
        self._over = False
        self.thread = threading.Thread(target=self._run, name="cutline-stream", daemon=True)

    def start(self) -> None:
        """Begins; what is registered by then needs no `soon`."""
        self.thread.start()

    def stop(self) -> None:
        """In the loop's thread: it ends after what is under way."""
        self._over = True

    def soon(self, call: Callable[[], None]) -> None:
        """Runs something in the loop's thread."""
        self._calls.append(call)
        if not self._waking:
            self._waking = True
            try:
                self._wake_in.send(b"\0")
            except OSError:
                # Full: it will wake. Or closed: there is nothing left to run it for.
                return

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """In the loop's thread: runs something after a while."""
        heapq.heappush(self._timers, (monotonic() + seconds, next(self._order), call))

    def _run(self) -> None:
        while not self._over:
            wait = max(0.0, self._timers[0][0] - monotonic()) if self._timers else None
            for key, mask in self.selector.select(wait):
                if not self._over:
                    self._safely(partial(key.data, mask))
            while self._timers and self._timers[0][0] <= monotonic() and not self._over:
                self._safely(heapq.heappop(self._timers)[2])
        self._let_go()

    def _let_go(self) -> None:
        """Closes whatever is still looked at, connections that have not said who they are among them."""
        for key in list((self.selector.get_map() or {}).values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self.selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _safely(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            # One connection's trouble is not that of all others.
            _log.exception("%s: the transport failed at %r", self.name, call)

    def _woken(self, _mask: int) -> None:
        self._wake_out.recv(4096)
        self._waking = False
        while self._calls:
            self._safely(self._calls.popleft())

    def forked(self) -> None:
        """In a forked child: nothing that it says may wake the parent's loop, nothing stays open by it."""
        self._let_go()
