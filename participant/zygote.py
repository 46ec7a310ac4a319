"""Starts participant processes fast: a small process that has imported everything forks them.

A fresh interpreter with numpy and gRPC takes a good part of a second; a fork of one takes milliseconds.
The coordinator cannot fork itself (threads, gRPC), so it starts this module as a plain process before
that matters and asks it over pipes. The zygote stays single-threaded and has imported gRPC without ever
using it, which is what makes the fork safe.

What a child is: a process in a session of its own (Ctrl-C in the terminal reaches the coordinator, which
decides), default signal handlers, no descriptor but 0, 1 and 2, environment, arguments, import path and
working directory as given, fresh random seeds, an empty ``__main__`` module. Its main thread runs
``entry(spec)``; its standard input is empty, output goes where the coordinator's goes. Hash randomisation
is the zygote's own: give PYTHONHASHSEED to `Zygote`, a child cannot change it any more.

The zygote ends when its pipe closes, also when the coordinator is killed; the children live on and a new
coordinator finds them (processes.py). If the zygote itself dies, the ends of its children are still
reported, without their status, and the next `start` begins a new zygote.

Where forking is unwise (macOS) the same requests start a fresh interpreter each.

The pipes carry a 4-byte little-endian length and a msgpack array::

    -> [number, job]               job: see zygote_child.py
    <- ["ready", pid, skipped]     skipped: modules that could not be imported ahead, with the reason
    <- ["started", number, pid]  | ["failed", number, text]
    <- ["exited", pid, status]     status: exit code, or minus the signal's number
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgpack

from cutline.errors import SpawnFailed

from .processes import process_started, watch_exit

__all__ = ("PRELOAD", "ChildExited", "Zygote")

PRELOAD = (
    "numpy",
    "msgpack",
    "lz4.frame",
    "blake3",
    "xxhash",
    "cutline.errors",
    "cutline.barrier",
    "cutline.storage",
    "cutline.participant",
    "cutline.participant.transport_mixed",
)
"""Imported before the first fork; a name that does not import is skipped and told in `Zygote.skipped`."""

_LENGTH = struct.Struct("<I")
_ANSWER = 30.0  # seconds until a start that is not answered has failed


@dataclass(frozen=True, slots=True)
class ChildExited:
    """A process started by `Zygote.start` has ended. ``status``: exit code, or minus the number of the
    signal that ended it; None if the zygote died first, so that nobody was told."""

    pid: int
    status: int | None
    name: str


class _Child:
    """A running zygote: its process, the pipe to it, what is asked and who lives."""

    def __init__(self, popen: subprocess.Popen[bytes], requests: int, replies: int) -> None:
        self.popen = popen
        self.requests = requests
        self.replies = replies
        self.asked: dict[int, tuple[str, Future[int]]] = {}
        self.living: dict[int, tuple[str, float]] = {}
        self.alive = True


class Zygote:
    """Starts processes and posts `ChildExited` for each; thread-safe.

    ``post`` is called from threads of this object and must not block. ``env``: added to the environment of
    the zygote process itself. ``fork``: False starts a fresh interpreter per child; None decides by system.
    """

    def __init__(
        self,
        post: Callable[[ChildExited], None],
        *,
        env: Mapping[str, str] | None = None,
        preload: Sequence[str] = PRELOAD,
        fork: bool | None = None,
    ) -> None:
        self._post = post
        self._env = dict(env or {})
        self._preload = tuple(preload)
        self._fork = sys.platform.startswith("linux") if fork is None else fork
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._number = 0
        self._closed = False
        self.skipped: dict[str, str] = {}

    @property
    def pid(self) -> int | None:
        """The zygote process, if one runs."""
        child = self._child
        return child.popen.pid if child is not None and child.alive else None

    def warm(self) -> None:
        """Begin to start the zygote; returns at once. Without it the first `start` does."""
        if self._fork:
            with self._lock:
                self._running()

    def start(
        self,
        entry: str,
        spec: bytes,
        env: Mapping[str, str] | None = None,
        *,
        name: str = "",
        argv: Sequence[str] | None = None,
        path: Sequence[str] | None = None,
        cwd: str | None = None,
    ) -> int:
        """Run ``entry(spec)`` ("module:function") in a new process; returns its process id.

        ``env`` is added to this process's environment; arguments, import path and working directory are
        this process's own unless given. What the entry raises is printed by the child, which ends with
        status 1. `ChildExited` may be posted before this returns. Raises SpawnFailed.
        """
        job = {
            "entry": entry,
            "spec": spec,
            "env": {**os.environ, **(env or {})},
            "name": name,
            "argv": list(sys.argv if argv is None else argv),
            "path": list(sys.path if path is None else path),
            "cwd": os.getcwd() if cwd is None else cwd,
        }
        if not self._fork:
            return self._start_fresh(job)
        answer: Future[int] = Future()
        with self._lock:
            child = self._running()
            self._number += 1
            child.asked[self._number] = (name, answer)
            try:
                _write(child.requests, [self._number, job])
            except OSError as error:
                child.asked.pop(self._number, None)
                raise SpawnFailed(f"{name or entry}: the zygote is gone ({error}); try again") from error
        try:
            return answer.result(_ANSWER)
        except FutureTimeout as error:
            raise SpawnFailed(f"{name or entry}: no answer from the zygote in {_ANSWER:g} s") from error

    def close(self) -> None:
        """End the zygote. Its children live on and their ends are no longer reported. Idempotent."""
        with self._lock:
            self._closed = True
            child, self._child = self._child, None
        if child is not None:
            _close_requests(child)
            child.popen.wait(10)

    # -- the zygote process ---------------------------------------------------------------------------

    def _running(self) -> _Child:
        """The lock is held."""
        if self._closed:
            raise SpawnFailed("the zygote was closed; no process can be started any more")
        if self._child is not None and self._child.alive:
            return self._child
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        try:
            popen = _interpreter(
                ("serve", str(request_read), str(reply_write), *self._preload),
                (request_read, reply_write),
                {**os.environ, **self._env},
            )
        finally:
            os.close(request_read)
            os.close(reply_write)
        child = self._child = _Child(popen, request_write, reply_read)
        threading.Thread(target=self._listen, args=(child,), name="cutline-zygote", daemon=True).start()
        return child

    def _listen(self, child: _Child) -> None:
        with open(child.replies, "rb") as replies:
            while (answer := _read(replies)) is not None:
                self._hear(child, *answer)
        with self._lock:
            child.alive = False
        _close_requests(child)
        status = child.popen.wait()
        for name, answer in child.asked.values():
            answer.set_exception(SpawnFailed(f"{name}: the zygote ended with status {status}; try again"))
        if self._closed:
            return
        for pid, (name, started) in child.living.items():
            watch_exit(pid, started, partial(self._lost, name))

    def _lost(self, name: str, pid: int) -> None:
        self._post(ChildExited(pid, None, name))

    def _hear(self, child: _Child, what: str, first: Any, second: Any) -> None:
        if what == "ready":
            self.skipped = second
        elif what == "started":
            name, answer = child.asked.pop(first)
            try:
                child.living[second] = (name, process_started(second))
            except ProcessLookupError:
                child.living[second] = (name, 0.0)  # ended already; "exited" follows
            answer.set_result(second)
        elif what == "failed":
            name, answer = child.asked.pop(first)
            answer.set_exception(SpawnFailed(f"{name}: the process could not be started: {second}"))
        else:
            name, _ = child.living.pop(first)
            self._post(ChildExited(first, second, name))

    # -- without a zygote -----------------------------------------------------------------------------

    def _start_fresh(self, job: dict[str, Any]) -> int:
        job_read, job_write = os.pipe()
        try:
            popen = _interpreter(("once", str(job_read)), (job_read,), {**job["env"], **self._env})
        except OSError as error:
            os.close(job_write)
            raise SpawnFailed(f"{job['name'] or job['entry']}: {error}") from error
        finally:
            os.close(job_read)
        threading.Thread(
            target=self._await, args=(popen, job["name"]), name="cutline-child", daemon=True
        ).start()
        try:
            _write(job_write, job)
        except BrokenPipeError:
            return popen.pid  # it died at once; `ChildExited` tells
        finally:
            os.close(job_write)
        return popen.pid

    def _await(self, popen: subprocess.Popen[bytes], name: str) -> None:
        status = popen.wait()
        if not self._closed:
            self._post(ChildExited(popen.pid, status, name))


def _interpreter(
    arguments: tuple[str, ...], descriptors: tuple[int, ...], env: dict[str, str]
) -> subprocess.Popen[bytes]:
    """A new interpreter that runs this module and finds cutline where this process found it."""
    home = str(Path(sys.modules["cutline"].__file__ or "").parent.parent)
    known = env.get("PYTHONPATH")
    env["PYTHONPATH"] = f"{known}{os.pathsep}{home}" if known else home
    return subprocess.Popen(
        # The package may import this module itself; runpy's warning about that is of no use here.
        (sys.executable, "-W", "ignore::RuntimeWarning:runpy", "-m", __name__, *arguments),
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,
        env=env,
    )


def _close_requests(child: _Child) -> None:
    descriptor, child.requests = child.requests, -1
    if descriptor >= 0:
        os.close(descriptor)


def _write(descriptor: int, document: Any) -> None:
    body = msgpack.packb(document, unicode_errors="surrogateescape")
    rest = memoryview(_LENGTH.pack(len(body)) + body)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read(stream: Any) -> Any:
    """The next document, or None at the end."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    length = _LENGTH.unpack(head)[0]
    body = stream.read(length)
    if len(body) < length:
        return None
    return msgpack.unpackb(body, unicode_errors="surrogateescape")


if __name__ == "__main__":
    from cutline.participant.zygote_child import main

    sys.exit(main(sys.argv[1:]))
