"""Calls whose arguments are still being made: top-level ObjectRefs of Ray, resolved without blocking anyone.

Ray resolves an ObjectRef that is an argument itself (not one inside a list) before it calls; code that hands
results of tasks to actors relies on it. A call with such arguments waits until all of them are there, and
whatever goes to the same receiver afterwards waits behind it: the order of a channel is the order in which
the calls were made (`Gates` does this in the driver, `cutline.participant.ray_runner` in a participant).

Nothing here imports Ray: an ObjectRef can only be here if somebody else has.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from cutline.errors import RemoteError

__all__ = ("Gates", "LateCall", "is_object_ref", "late_call")

# What stands for an ObjectRef where two runs of the same code are compared: each has names of its own.
_PLACE = "\0cutline: an ObjectRef"
# Asked first: most arguments are of these types.
_NEVER = frozenset((type(None), bool, int, float, str, bytes, list, tuple, dict))


def is_object_ref(value: object) -> bool:
    """Whether it is an ObjectRef of Ray's."""
    ray = sys.modules.get("ray")
    kind = getattr(ray, "ObjectRef", None)
    return kind is not None and isinstance(value, kind)


def _cause(error: Exception) -> Exception:
    """What the task raised. Ray wraps it in a class made on the spot, which cannot travel."""
    cause = getattr(error, "cause", None)
    if type(error).__name__.startswith("RayTaskError") and isinstance(cause, Exception):
        return _cause(cause)
    return error


class LateCall:
    """Arguments with ObjectRefs among them."""

    __slots__ = ("_args", "_kwargs", "_futures")

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._args, self._kwargs = args, kwargs
        values = [*args, *kwargs.values()]
        self._futures: list[Future[Any] | None] = [v.future() if is_object_ref(v) else None for v in values]

    def outline(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the same stand-in for each ObjectRef."""
        return self._with(lambda value, future: value if future is None else _PLACE)

    def filled(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the values; call it when `ready`.

        Raises:
            Exception: what the task behind one of them raised, or RayError if its value is lost.
        """
        try:
            return self._with(lambda value, future: value if future is None else future.result(0))
        except Exception as error:
            cause = _cause(error)
            if cause is error:
                raise
            raise cause from RemoteError(f"raised by a Ray task:\n{error}")

    def _with(
        self, shown: Callable[[Any, Future[Any] | None], Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        count = len(self._args)
        args = tuple(shown(value, future) for value, future in zip(self._args, self._futures, strict=False))
        named = zip(self._kwargs.items(), self._futures[count:], strict=True)
        return args, {name: shown(value, future) for (name, value), future in named}

    @property
    def ready(self) -> bool:
        """Whether all values are there."""
        return all(future is None or future.done() for future in self._futures)

    def when_ready(self, call: Callable[[], None]) -> None:
        """Calls `call` when a value has come, on any thread; ask `ready` then."""
        for future in self._futures:
            if future is not None:
                future.add_done_callback(lambda _done: call())


def late_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LateCall | None:
    """A `LateCall`, if an argument is an ObjectRef."""
    if "ray" not in sys.modules:
        return None
    for value in args:
        if type(value) not in _NEVER and is_object_ref(value):
            return LateCall(args, kwargs)
    if kwargs and any(map(is_object_ref, kwargs.values())):
        return LateCall(args, kwargs)
    return None


class _Waiting(NamedTuple):
    late: LateCall | None
    go: Callable[[], None]
    failed: Callable[[Exception], None]
    done: Future[None]


class Gates:
    """The driver's gates, one per receiver. User threads put calls in, one thread lets them out in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, deque[_Waiting]] = {}
        self._wakes: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def through(
        self, target: str, late: LateCall | None, go: Callable[[], None], failed: Callable[[Exception], None]
    ) -> Future[None] | None:
        """Runs `go`, now if nothing is to be waited for (returns None), else when it is its turn.

        `failed` gets what `go` raises later; now it is raised here.
        """
        with self._lock:
            waiting = self._queues.get(target)
            if waiting is not None or late is not None:
                entry = _Waiting(late, go, failed, Future())
                self._queues.setdefault(target, deque()).append(entry)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="cutline-gates", daemon=True)
                    self._thread.start()
            else:
                entry = None
        if entry is None:
            go()
            return None
        if late is not None:
            late.when_ready(lambda: self._wakes.put(target))
        self._wakes.put(target)
        return entry.done

    def targets(self) -> list[str]:
        """The receivers of calls that still wait."""
        with self._lock:
            return [target for target, waiting in self._queues.items() if waiting]

    def close(self) -> None:
        """Ends the thread; what still waits is dropped."""
        self._wakes.put(None)

    def _run(self) -> None:
        while True:
            target = self._wakes.get()
            if target is None:
                return
            while (entry := self._next(target)) is not None:
                try:
                    entry.go()
                except Exception as error:
                    entry.failed(error)
                entry.done.set_result(None)
                with self._lock:
                    self._queues[target].popleft()

    def _next(self, target: str) -> _Waiting | None:
        with self._lock:
            waiting = self._queues.get(target)
            if waiting is None:
                return None
            if not waiting:
                # Only now may a caller pass without waiting: everything before it has gone.
                del self._queues[target]
                return None
            entry = waiting[0]
            return entry if entry.late is None or entry.late.ready else None
