"""Which sockets of standing links a transport's thread looks at, and which it shares with an attendant."""

from __future__ import annotations

import os
import select
import selectors
from collections.abc import Callable
from functools import partial

from .attendance import CAN_ATTEND, Attendance
from .link_stream import Lane

__all__ = ("LaneWatch",)


class LaneWatch:
    """In the transport's thread, all of it.

    A lane that waits for nothing but the next packet is shared (attendance.py). One whose socket is full is
    this thread's alone: bulk is under way, and an exclusive registration cannot wait for room.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        ready: Callable[[Lane, int], None],
        give_back: Callable[[Lane], None],
    ) -> None:
        self._selector = selector
        self._ready = ready
        self.attendance: Attendance | None = None
        self._epoll: select.epoll | None = None
        if CAN_ATTEND and isinstance(selector, selectors.EpollSelector):
            self.attendance = Attendance(give_back)
            # A descriptor of its own for the same epoll: `selectors` knows no exclusive registrations.
            self._epoll = select.epoll.fromfd(os.dup(selector.fileno()))

    def look(self, lane: Lane, *, standing: bool) -> None:
        """Looks at the lane's socket for what the lane now waits for.

        Before its link is `standing` somebody else has registered it, with a callback of its own.
        """
        connection = lane.socket
        if connection is None or connection.fileno() < 0:
            return
        wanted = 0 if lane.is_over else selectors.EVENT_READ
        if lane.full and not lane.lost:
            wanted |= selectors.EVENT_WRITE
        known = self._selector.get_map().get(connection)
        if known is not None and known.events == wanted:
            return
        if not standing:
            if known is not None:
                self._selector.modify(connection, wanted, known.data)
            return
        self.forget(lane)
        if not wanted:
            return
        shared = wanted == selectors.EVENT_READ and self.attendance is not None
        if self.attendance is not None and shared:
            self.attendance.add(lane)
        self._selector.register(connection, wanted, partial(self._ready, lane))
        if self._epoll is not None and shared:
            self._epoll.unregister(connection)
            self._epoll.register(connection, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def forget(self, lane: Lane) -> None:
        """Looks at it no more."""
        connection = lane.socket
        if connection is not None and connection in self._selector.get_map():
            if self.attendance is not None:
                self.attendance.remove(lane)
            self._selector.unregister(connection)

    def close(self) -> None:
        """Nobody attends from now on; the selector is about to be closed."""
        if self.attendance is not None:
            self.attendance.close()
        if self._epoll is not None:
            self._epoll.close()

    def forked(self) -> None:
        """In a forked child: lets go of what belongs to the parent."""
        if self.attendance is not None:
            self.attendance.forked()
        if self._epoll is not None:
            self._epoll.close()
