"""Is that process still there, and when does it end: for processes that are not our children.

A process id alone says little, since ids are used again; the id together with the time of its start names
one process. The start time is an opaque figure to be compared, on Linux in seconds after the machine's
boot as the kernel counted them: unlike a wall-clock time it does not move when the clock is set, so a
clock that jumps never makes a live process look dead. Elsewhere it is what ``ps`` prints, in whole
seconds of wall-clock time.

A zombie has ended: it runs nothing, only its parent has not looked yet.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ("Watch", "only_here", "process_alive", "process_started", "watch_exit")

_PROC = os.path.exists("/proc/self/stat")
_TICKS = os.sysconf("SC_CLK_TCK")
_SAME = 0.5 / _TICKS if _PROC else 1.5  # seconds by which two readings of one start may differ
_POLL = 0.05  # seconds between looks where the kernel offers no notice


@contextlib.contextmanager
def only_here() -> Iterator[None]:
    """Round a call of a user's function: a copy of the process that it makes by a fork ends where it comes
    out of it, as the process does. What follows would be done twice."""
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != pid:
            os._exit(0)


def process_started(pid: int) -> float:
    """When the process started (see the module's head). Raises ProcessLookupError if it has ended."""
    found = _look(pid)
    if found is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return found


def process_alive(pid: int, started: float) -> bool:
    """Whether the process that `process_started` saw still runs."""
    found = _look(pid)
    return found is not None and abs(found - started) <= _SAME


def _look(pid: int) -> float | None:
    if pid <= 0:
        return None
    return _look_in_proc(pid) if _PROC else _ask_ps(pid)


def _look_in_proc(pid: int) -> float | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name stands in parentheses and may hold any byte; what follows it is plain.
    fields = line[line.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X", b"x"):
        return None
    return int(fields[19]) / _TICKS


def _ask_ps(pid: int) -> float | None:
    answer = subprocess.run(
        ("ps", "-o", "stat=,lstart=", "-p", str(pid)),
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        check=False,
    )
    state, _, began = answer.stdout.strip().partition(" ")
    if not state or state.startswith("Z"):
        return None
    return time.mktime(time.strptime(began.strip(), "%a %b %d %H:%M:%S %Y"))


class Watch:
    """What `watch_exit` returns."""

    def __init__(self, pid: int, started: float, callback: Callable[[int], None]) -> None:
        self._pid = pid
        self._started = started
        self._callback = callback
        self._cancelled = False
        self._lock = threading.Lock()  # guards the descriptors and the flag
        self._descriptor = _open_descriptor(pid)
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"cutline-watch-{pid}", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """No call begins after this one has returned. Idempotent."""
        with self._lock:
            self._cancelled = True
            if self._wake_write >= 0:
                os.write(self._wake_write, b"x")

    def join(self, timeout: float | None = None) -> None:
        """Wait until the watch is over; not from the callback."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            self._wait()
        finally:
            with self._lock:
                cancelled = self._cancelled
                for number in (self._descriptor, self._wake_read, self._wake_write):
                    if number >= 0:
                        os.close(number)
                self._wake_write = -1
        if not cancelled:
            self._callback(self._pid)

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._descriptor >= 0:
            poll.register(self._descriptor, select.POLLIN)
        # The descriptor was opened before this look: it names the right process or one that ended.
        while process_alive(self._pid, self._started):
            if poll.poll(None if self._descriptor >= 0 else _POLL * 1000):
                return


def watch_exit(pid: int, started: float, callback: Callable[[int], None]) -> Watch:
    """Call ``callback(pid)`` once, from a thread of its own, when that process has ended.

    Works for processes that are not children of this one. One that has ended before is reported at once.
    """
    return Watch(pid, started, callback)


def _open_descriptor(pid: int) -> int:
    """A descriptor that becomes readable at the process's end; -1 where the kernel has none."""
    if not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:  # ended already, an old kernel, or a container that forbids the call: look instead
        return -1
