"""The one daemon thread of a process in which gRPC runs, and how it comes and goes.

grpc.aio supports one event loop per process in practice (a second loop shares the first one's completion
queue and logs spurious errors), so all transports of a process share this thread. It starts with the
first transport and ends with the last one. A synchronous gRPC server is out of the question: it takes a
pool thread per open stream and joins them at exit, where a process then hangs.

The thread is a daemon and an exit hook ends it: without the hook the interpreter would be torn down under
a thread that is inside C++ code. A forked child has none of this: it neither closes nor waits for what
its parent owns.

Fork noise. gRPC's fork support prints "Other threads are currently calling into gRPC, skipping fork()
handlers" whenever user code forks while a transport lives, and does nothing else for us: a child that
wants gRPC starts from the zygote, which never used it. It is switched off by GRPC_ENABLE_FORK_SUPPORT=0,
and messages below errors by GRPC_VERBOSITY=ERROR.

Latency. Up to the versions known here gRPC has two I/O engines; the older one reads and writes in the
threads that ask, the newer one hands everything to a pool first. Between two processes on two cores the
older one takes a third off a round trip and has half again the throughput, so GRPC_EXPERIMENTS asks for
it, on versions that know the words.

All three are set before grpc is first imported and only if the user has not set them. A program that
imports grpc before cutline keeps what it had.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from importlib import metadata
from typing import Any, TypeVar

_NEWEST_WITH_BOTH_ENGINES = (1, 85)


def _set_environment() -> None:
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    major, minor = metadata.version("grpcio").split(".")[:2]
    if (int(major), int(minor)) <= _NEWEST_WITH_BOTH_ENGINES:
        os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")


_set_environment()

import grpc  # noqa: E402
import grpc.aio  # noqa: E402

__all__ = ("GrpcThread", "acquire", "grpc", "release")

EXIT_GRACE = 1.0  # seconds that a process at its exit gives each transport to end its links

_T = TypeVar("_T")
_lock = threading.Lock()
_current: GrpcThread | None = None


class GrpcThread:
    """An event loop in a daemon thread. Use `acquire` and `release`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_on_loop_error)
        self.pid = os.getpid()
        self.users: dict[object, Callable[[float], None]] = {}
        self._thread = threading.Thread(target=self._run, name="cutline-grpc", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self._settle())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    async def _settle(self) -> None:
        # What was cancelled gets its turn to end; otherwise "Task was destroyed" would be printed.
        for _ in range(3):
            rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            if not rest:
                break
            for task in rest:
                task.cancel()
            await asyncio.wait(rest, timeout=0.2)
        await self.loop.shutdown_asyncgens()

    def inside(self) -> bool:
        """True in this very thread."""
        return threading.get_ident() == self._thread.ident

    def call(self, work: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine in the thread and wait for it. Raises what it raises, and TimeoutError."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def stop(self) -> None:
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.inside():
            self._thread.join(EXIT_GRACE)


def acquire(user: object, close: Callable[[float], None]) -> GrpcThread:
    """The thread of this process. ``close(grace)`` is called if the process exits before `release`."""
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _set_environment()  # again: a forked child may have been given another environment
            _current = GrpcThread()
        _current.users[user] = close
        return _current


def release(user: object) -> None:
    """The user has ended everything it ran in the thread."""
    global _current
    with _lock:
        thread = _current
        if thread is None or thread.users.pop(user, None) is None or thread.users:
            return
        _current = None
    thread.stop()


def _on_loop_error(loop: asyncio.AbstractEventLoop, report: dict[str, Any]) -> None:
    # Another event loop with grpc.aio in this process (the user's) may take our wake-up byte: harmless,
    # the loop that took it hands the work over. And what is left of an earlier thread's calls may come to
    # this one, whose wake-up serves the whole process: nobody waits for it any more.
    fault = report.get("exception")
    if isinstance(fault, BlockingIOError) or (isinstance(fault, RuntimeError) and "closed" in str(fault)):
        return
    loop.default_exception_handler(report)


def _at_exit() -> None:
    thread = _current
    if thread is None or thread.pid != os.getpid():
        return
    for close in list(thread.users.values()):
        close(EXIT_GRACE)


def _after_fork_in_child() -> None:
    # The parent may have held the lock while it forked; the thread does not exist here.
    global _current, _lock
    _lock = threading.Lock()
    _current = None


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
