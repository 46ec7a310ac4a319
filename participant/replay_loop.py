"""An asyncio event loop without a clock or a selector: what one async handler runs on.

An async handler must do the same again when it is run again with the same answers. So everything that
can wake it goes through its journal: answers and timers. This loop runs what is ready, in order, until
nothing is, and then stops; the runner decides which journaled event comes next. `asyncio.gather`,
`TaskGroup`, `as_completed`, `timeout` and `sleep` work unchanged. Its `time` moves only between two steps,
to what the journal says (`advance`), so that it is the same in a re-run.

What cannot be journaled is refused by name: sockets, threads, subprocesses, and being woken by another
handler of the same participant.
"""

from __future__ import annotations

import asyncio
import heapq
import weakref
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, NoReturn

from cutline.errors import NotReplayable

__all__ = ("ReplayLoop",)


class ReplayLoop(asyncio.AbstractEventLoop):
    """Runs one handler's tasks; see the module's head."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.now = 0.0
        self.stepping = False
        self.faults: list[BaseException] = []
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0

    def run_ready(self, first: Callable[[], None] | None = None) -> None:
        """Runs `first`, then what is ready, until nothing is."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        self.stepping = True
        try:
            if first is not None:
                first()
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            self.stepping = False
            events._set_running_loop(before)

    def next_timer(self) -> tuple[float, int] | None:
        """When the first timer is due, in seconds of this loop, and its number."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        when, number, _ = self._timers[0]
        return when, number

    def advance(self, now: float) -> None:
        """The time of the step that begins; it never goes back."""
        self.now = max(self.now, now)

    def fire(self, number: int) -> None:
        """Lets the timer `number` come due, whatever the others are."""
        for k, (when, candidate, handle) in enumerate(self._timers):
            if candidate == number:
                del self._timers[k]
                heapq.heapify(self._timers)
                self.now = max(self.now, when)
                self._ready.append(handle)
                return
        raise NotReplayable(f"{self.where}: timer {number} of the journal does not exist in this run")

    def close_tasks(self) -> None:
        """Ends all tasks without running them further; nothing of theirs is to be heard again."""
        # Timers may be all that holds a task: one that is collected ends by itself, and complains at random.
        tasks = list(self._tasks)
        self._ready.clear()
        self._timers.clear()
        self.stepping = True
        try:
            for task in tasks:
                if not task.done():
                    # It ends on purpose: no complaint at collection.
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    coroutine = task.get_coro()
                    if coroutine is not None:
                        try:
                            coroutine.close()
                        except BaseException as fault:
                            # It awaits or raises in a `finally`; what it would do is discarded with the state
                            # anyway, and a rollback must not break at it.
                            self.faults.append(fault)
        finally:
            self._ready.clear()
            self.stepping = False

    # -- what asyncio's tasks, futures and gather use ---------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        if not self.stepping:
            raise NotReplayable(
                f"{self.where} was woken from outside its own messages (by another handler's lock, event or "
                "future); such a wake-up is in no journal. Let handlers wait for each other by messages."
            )
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self._tasks.add(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.stepping

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        # `next_timer` skips cancelled ones; nothing to count.
        del handle

    def get_task_factory(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        fault = context.get("exception")
        if isinstance(fault, BaseException):
            self.faults.append(fault)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    # -- what cannot be journaled -------------------------------------------------------------------

    def _refuse(self, what: str) -> NoReturn:
        raise NotReplayable(
            f"{self.where} awaits {what}: its outcome is in no journal, so a re-run could differ. Do it in a "
            "sync method, or outside the system, and send the outcome as a message."
        )

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self._refuse("another thread")

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        self._refuse("a thread pool")

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        self._refuse("a network connection")

    async def create_datagram_endpoint(self, *args: Any, **options: Any) -> Any:
        self._refuse("a network connection")

    async def create_unix_connection(self, *args: Any, **options: Any) -> Any:
        self._refuse("a network connection")

    async def create_server(self, *args: Any, **options: Any) -> Any:
        self._refuse("a server")

    async def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        self._refuse("a subprocess")

    async def subprocess_shell(self, *args: Any, **options: Any) -> Any:
        self._refuse("a subprocess")

    async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
        self._refuse("a name lookup")

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> Any:  # type: ignore[override]
        self._refuse("a file descriptor")

    def add_writer(self, fd: Any, callback: Any, *args: Any) -> Any:  # type: ignore[override]
        self._refuse("a file descriptor")

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> Any:  # type: ignore[override]
        self._refuse("a signal")
