"""The other end of zygote.py: the server loop, and how a forked child becomes a participant process.

The loop is a single thread over one pipe and a self-pipe that tells of ended children. A child does not
run inside the loop: `serve` returns its job up to `main`, so that the entry runs on a clean stack and the
interpreter ends in the ordinary way (exit hooks, flushed output).
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import select
import signal
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .zygote import _read, _write

__all__ = ("main",)


def main(arguments: Sequence[str]) -> Any:
    """``serve REQUESTS REPLIES MODULE...`` or ``once JOB``; returns what `sys.exit` takes."""
    if arguments[0] == "once":
        with open(int(arguments[1]), "rb") as pipe:
            job = _read(pipe)
        if job is None:
            return 0  # whoever wanted this process is gone
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        job = _Server(int(arguments[1]), int(arguments[2])).serve(arguments[3:])
        if job is None:
            return 0
    return _become(job)


class _Server:
    def __init__(self, requests: int, replies: int) -> None:
        self._requests = requests
        self._replies = replies
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        os.set_inheritable(requests, False)
        os.set_inheritable(replies, False)

    def serve(self, preload: Sequence[str]) -> dict[str, Any] | None:
        """In a child: its job. In the zygote: None, when nobody listens any more."""
        skipped = _import_ahead(preload)
        signal.signal(signal.SIGCHLD, _noticed)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()  # a collection in a child would otherwise copy every page it looks at
        try:
            with open(self._requests, "rb", closefd=False, buffering=0) as requests:
                _write(self._replies, ["ready", os.getpid(), skipped])
                while True:
                    ready, _, _ = select.select((self._requests, self._wake_read), (), ())
                    if self._wake_read in ready:
                        self._reap()
                    if self._requests in ready:
                        request = _read(_Whole(requests))
                        if request is None:
                            return None
                        job = self._fork(*request)
                        if job is not None:
                            return job
        except BrokenPipeError:
            return None

    def _fork(self, number: int, job: dict[str, Any]) -> dict[str, Any] | None:
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            _write(self._replies, ["failed", number, str(error)])
            return None
        if not pid:
            signal.set_wakeup_fd(-1)
            return job
        _write(self._replies, ["started", number, pid])
        return None

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            _write(self._replies, ["exited", pid, os.waitstatus_to_exitcode(status)])


class _Whole:
    """Unbuffered reads that return all that was asked for: select must never miss buffered bytes."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._raw.read(size - len(parts))
            if not part:
                break
            parts += part
        return bytes(parts)


def _noticed(_number: int, _frame: Any) -> None:
    """The wake-up descriptor does the work; a handler must be there for it to be written."""


def _import_ahead(names: Sequence[str]) -> dict[str, str]:
    skipped = {}
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:  # the entry that needs it will say so where the user sees it
            skipped[name] = str(error)
    return skipped


def _become(job: dict[str, Any]) -> Any:
    """Turn this process into what the job asks for and run its entry."""
    with suppress(PermissionError):  # a session leader already: started without a zygote
        os.setsid()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(job["env"])
    os.chdir(job["cwd"])
    sys.argv[:] = job["argv"]
    sys.path[:] = job["path"]
    importlib.invalidate_caches()
    # This interpreter's __main__ is the zygote's; user classes of __main__ must not be looked up there.
    sys.modules["__main__"] = types.ModuleType("__main__")
    _reseed()
    if job["name"]:
        with suppress(OSError), open("/proc/self/comm", "w") as comm:
            comm.write(job["name"][:15])
    module, _, function = job["entry"].partition(":")
    return getattr(importlib.import_module(module), function)(job["spec"])


def _reseed() -> None:
    """Forked children would otherwise all draw the same numbers."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
