"""Where a thread that has nothing to do waits and reads: a packet reaches it without a change of threads.

A transport has a thread that reads, the *keeper*. The thread that handles what was read, the *attendant*, may
wait here while it has nothing to handle: then it reads, decodes and handles by itself. While it handles, the
keeper reads, as it does when nobody attends.

*Who is woken.* The kernel decides: a socket is registered here and with the keeper, both times exclusively
(EPOLLEXCLUSIVE), here first. Of the two it wakes the first that somebody waits in. So no packet waits for a
long handler, and nobody hands anything over. That the other is left alone only saves time: should both wake,
one of them finds nothing.

*Who reads.* Whoever holds `Lane.reading` reads and posts what was read before letting go, so the payloads of
a lane are posted in order. Whoever takes a link down closes its sockets under these locks, and only then
posts the end.

*Who rings.* An event that is posted by another thread must end the waiting. The attendant says that it is
inside and then looks whether there are events; whoever posts puts the event there and then looks whether
somebody is inside. One of them sees the other.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .link_stream import Lane

__all__ = ("Attendance", "CAN_ATTEND")

CAN_ATTEND = hasattr(select, "EPOLLEXCLUSIVE") and hasattr(os, "eventfd")
_MOST = 64
_ROUNDS = 8


class Attendance:
    """For one attendant at a time. `add`, `remove` and `close` are the keeper's; `ring` is anybody's.

    Args:
        give_back: called by the attendant with a lane that the keeper has to look at: it came to its end, or
            there is more than the attendant reads at once.
    """

    def __init__(self, give_back: Callable[[Lane], None]) -> None:
        self._give_back = give_back
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Once per ringing: nobody has to read it, which would be a system call and a chance to lose the
        # interpreter to another thread.
        self._epoll.register(self._bell, select.EPOLLIN | select.EPOLLET)
        self._lanes: dict[int, Lane] = {}
        self._inside = False
        self._rung = False
        self._over = False
        # Held by whoever changes what is registered.
        self._registering = threading.Lock()
        # Held by whoever writes to the bell, which must not be closed meanwhile.
        self._ringing = threading.Lock()
        # Held by the attendant; what it waits in must not be closed meanwhile.
        self._attending = threading.Lock()

    def ring(self) -> None:
        """Ends the waiting, if somebody waits."""
        # Whoever sets `_rung` writes, and it is cleared before each waiting: seen, it has a write to come.
        if self._inside and not self._rung:
            with self._ringing:
                if not self._over:
                    self._rung = True
                    os.eventfd_write(self._bell, 1)

    def attend(self, wait: float, is_idle: Callable[[], bool]) -> bool:
        """Waits for at most so many seconds if `is_idle()`, and reads; false if there is nowhere to wait."""
        with self._attending:
            if self._over:
                return False
            self._rung = False
            self._inside = True
            try:
                ready = self._epoll.poll(wait, _MOST) if is_idle() else ()
            finally:
                self._inside = False
            for descriptor, _mask in ready:
                lane = self._lanes.get(descriptor)
                if lane is not None:
                    self._read(lane)
        return True

    def _read(self, lane: Lane) -> None:
        # To its end, since the kernel tells nobody else of what is left; more than so much is the keeper's.
        for _ in range(_ROUNDS):
            lane.receive()
            if not lane.has_more:
                break
        if lane.is_over:
            self.remove(lane)
        if lane.is_over or lane.has_more:
            self._give_back(lane)

    def add(self, lane: Lane) -> None:
        """Reads it here from now on; the keeper registers it for itself afterwards."""
        assert lane.socket is not None
        with self._registering:
            descriptor = lane.socket.fileno()
            self._lanes[descriptor] = lane
            self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def remove(self, lane: Lane) -> None:
        """The attendant may do so too; the first one does. The keeper does before it closes the socket."""
        assert lane.socket is not None
        with self._registering:
            descriptor = lane.socket.fileno()
            if self._lanes.get(descriptor) is lane:
                del self._lanes[descriptor]
                self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Nobody attends from now on."""
        with self._ringing:
            if self._over:
                return
            self._over = True
            os.eventfd_write(self._bell, 1)
        with self._attending:
            self.forked()

    def forked(self) -> None:
        """In a forked child: lets go of what belongs to the parent."""
        self._over = True
        self._lanes.clear()
        self._epoll.close()
        # Once: its number may be somebody else's by now.
        bell, self._bell = self._bell, -1
        if bell >= 0:
            os.close(bell)
