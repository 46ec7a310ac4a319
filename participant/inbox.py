"""What has happened and was not looked at: any thread puts it here, the runner's thread takes it.

With nothing to do the runner waits at the `attendance` of its transport, where there is one, and reads its
packets itself; else for what other threads post. A busy one looks there now and then: where every core is
busy, the transport's thread, which would read for it, may have to wait for several milliseconds for one.

User code may fork. The child has a copy of the runner and nothing that belongs to it: no thread, no
connection. It may do what it likes, but one that comes back from its handler to the loop ends there.
"""

from __future__ import annotations

import os
import queue
import sys
import time
import weakref
from typing import Any, NoReturn

from .attendance import Attendance
from .transport import Transport

__all__ = ("Inbox", "NOTHING")

NOTHING: Any = object()
LOOK_AFTER = 0.001  # seconds that a busy runner goes on without looking for packets itself
_living: weakref.WeakSet[Inbox] = weakref.WeakSet()


class Inbox:
    """The part of `cutline.participant.runner.Runner` that is called from other threads."""

    transport: Transport

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Whether something was posted since the runner last looked.
        self.called = False
        # Whether this process is a fork of the one that the runner belongs to.
        self.is_copy = False
        self._attendance: Attendance | None = None
        self._looked = 0.0
        _living.add(self)

    def post(self, event: Any) -> None:
        """Takes an event from any thread."""
        self.queue.put(event)
        self.called = True
        if self._attendance is not None:
            self._attendance.ring()

    def next_event(self, wait: float = -1.0) -> Any:
        """The oldest event; after so many seconds without one NOTHING, which may come sooner.

        With 0 it looks for packets too, now and then; below that it takes only what was posted.
        """
        if self.is_copy:
            self._end_copy()
        try:
            if wait <= 0 or self._attended(wait):
                # Set again by whatever is put from here on; at worst for nothing.
                self.called = False
                if self._attendance is not None and wait == 0:
                    self._look(self._attendance)
                return self.queue.get_nowait()
            self.called = False
            self.is_idle()
            return self.queue.get(timeout=wait)
        except queue.Empty:
            return NOTHING

    def _attended(self, wait: float) -> bool:
        if self._attendance is None:
            # Set before it is entered: whoever posts without seeing it is seen by `empty`.
            self._attendance = self.transport.attendance
        return self._attendance is not None and self._attendance.attend(wait, self.is_idle)

    def _look(self, attendance: Attendance) -> None:
        """Reads what is there, at most every LOOK_AFTER seconds."""
        now = time.monotonic()
        if now - self._looked >= LOOK_AFTER:
            self._looked = now
            attendance.attend(0.0, self.is_idle)

    def is_idle(self) -> bool:
        """Whether nothing was posted; asked right before waiting."""
        return self.queue.empty()

    def _end_copy(self) -> NoReturn:
        # At once: what this process would do at its exit is the parent's to do.
        sys.stderr.write(
            f"cutline: process {os.getpid()} was forked by a handler and came back from it; a participant "
            "has one process, so this one ends here. End such a child inside the handler, with os._exit(0)\n"
        )
        sys.stderr.flush()
        os._exit(1)


def _after_fork_in_child() -> None:
    for inbox in list(_living):
        inbox.is_copy = inbox.called = True


os.register_at_fork(after_in_child=_after_fork_in_child)
