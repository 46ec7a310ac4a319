"""One sync for all who wait for the same folder: group commit.

A sync makes durable what was done before it began. Who comes while one is under way cannot count on it; all
who came meanwhile share the next one. A failure is told to everybody whom that sync was for: the kernel may
have dropped what it could not write, and a second sync would report success.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Hashable

__all__ = ("SharedSync",)


class _Round:
    """A sync that is to come, or is under way."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: BaseException | None = None


class SharedSync:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By what is synced: the round under way, and the one after it.
        self._running: dict[Hashable, _Round] = {}
        self._next: dict[Hashable, _Round] = {}

    def sync(self, what: Hashable, perform: Callable[[], None]) -> None:
        """Returns when a `perform` of `what` has ended that began after this call. Raises what it raised."""
        with self._lock:
            running, mine, leads = self._running.get(what), self._next.get(what), False
            if mine is None:
                mine, leads = _Round(), True
                (self._next if running is not None else self._running)[what] = mine
        if leads:
            self._lead(what, mine, running, perform)
        else:
            mine.over.wait()
        if mine.error is not None:
            raise mine.error

    def _lead(self, what: Hashable, mine: _Round, before: _Round | None, perform: Callable[[], None]) -> None:
        try:
            if before is not None:
                before.over.wait()
            with self._lock:
                # From here on nobody joins.
                if self._next.get(what) is mine:
                    del self._next[what]
                self._running[what] = mine
            perform()
        except Exception as error:
            mine.error = error
        except BaseException:
            # The others did not press Ctrl-C.
            mine.error = OSError(errno.EINTR, "the sync was interrupted")
            raise
        finally:
            with self._lock:
                for rounds in (self._next, self._running):
                    if rounds.get(what) is mine:
                        del rounds[what]
            mine.over.set()
