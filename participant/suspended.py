"""The async side of a desk: runs suspended handlers from one await to the next, and wakes them.

Everything that wakes a handler is journaled before it runs: an answer, or a timer, with the time of its
loop. So its loop's clock moves between two steps as the wall clock does, and in a re-run it moves in the
same way: a sleep that began at 0 s and a timeout of 5 s set at 9 s come due in the order in which they
would have.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from cutline.barrier import Member
from cutline.errors import Misuse, RemoteError, StateChangedBeforeAwait

from .async_call import ANSWERED, TIMER, AsyncCall, Wake
from .messages import encode_answer, pack_error, pack_value, unpack_error, unpack_value
from .saying import said
from .timers import Timers

__all__ = ("HandlerRaised", "SuspendedCalls")

# What a timer answers, packed: None.
_FIRED = [None]


class HandlerRaised(Exception):
    """A handler raised where nobody waits for its answer; `cause` is what it raised."""

    def __init__(self, method: str, cause: BaseException) -> None:
        super().__init__(f"{method}: {said(cause)}")
        self.method = method
        self.cause = cause


class SuspendedCalls(Timers):
    """The part of `cutline.participant.desk.Desk` that knows suspended handlers."""

    me: Member
    fingerprint: Callable[[AsyncCall], bytes] | None
    live: Any
    out: list[tuple[str | Member, bytes]]
    answers: dict[int, tuple[bool, Any]]
    calls: dict[int, AsyncCall]
    active: AsyncCall | None
    in_handler: str
    next_call: int
    after: deque[Callable[[], None]]

    @abstractmethod
    def answered(self, number: int, ok: bool, packed: Any, *, bury: bool = False) -> None:
        """Takes the answer of an own question."""

    def _answer(self, sender: Member, question: int, method: str, value: Any) -> None:
        try:
            packed = pack_value(value, participant=self.me.name, where=f"answer of {method}")
        except Exception as refusal:
            self._raised(sender, question, method, refusal)
            return
        self.out.append((sender, encode_answer(question, True, packed)))

    def _raised(self, sender: Member | None, question: int, method: str, error: BaseException) -> None:
        if not question or sender is None:
            raise HandlerRaised(method, error)
        packed = pack_error(error, participant=self.me.name)
        self.out.append((sender, encode_answer(question, False, packed)))

    def drain(self) -> None:
        """Runs what the step has made ready: waiters of answers that are there."""
        while self.after:
            self.after.popleft()()

    def _begin(self, coroutine: Any, sender: Member | None, question: int, method: str, packed: Any) -> None:
        """An async handler starts; `coroutine` is its call, not yet run."""
        call = AsyncCall(self.next_call, self.me.name, sender, question, method, packed, self.now())
        self.next_call += 1
        self.calls[call.number] = call
        self._segment(call, lambda: call.start(coroutine))

    def _segment(self, call: AsyncCall, run: Callable[[], None]) -> None:
        """Runs an async handler from one suspension to the next, and again while answers are there."""
        before = self.fingerprint(call) if self.fingerprint is not None else b""
        self.active, self.in_handler = call, call.method
        try:
            run()
        except Misuse as fault:
            self.end(call, fault)
            return
        finally:
            self.active, self.in_handler = None, ""
        if call.done:
            self._finish(call)
            return
        if call.stepped:
            self.end(call, self._stepped(call))
            return
        if before and self.fingerprint is not None and self.fingerprint(call) not in (before, b""):
            self.end(call, self._changed(call))
            return
        self.arm(call)
        for number in call.awaited():
            if number in self.answers:
                ok, packed = self.answers[number]
                self.after.append(partial(self._wake, call, ANSWERED, number, ok, packed))
                return

    def _changed(self, call: AsyncCall) -> StateChangedBeforeAwait:
        return StateChangedBeforeAwait(
            f"{self.me.name}.{call.method} changed the participant's state and then awaited. "
            "After a crash it is "
            "run again from the top with the same answers, and would change it twice. Read and ask first, "
            "change state after the last await.",
            participant=self.me.name,
            method=call.method,
        )

    def _stepped(self, call: AsyncCall) -> StateChangedBeforeAwait:
        return StateChangedBeforeAwait(
            f"{self.me.name}.{call.method} made a step of a log and then awaited. After a crash it is run "
            "again from the top, and would make the step again on a log that has it already. Make steps "
            "after the last await, or in a sync method.",
            participant=self.me.name,
            method=call.method,
        )

    def _wake(self, call: AsyncCall, kind: str, number: int, ok: bool, packed: Any) -> None:
        if call.number not in self.calls:
            return
        if kind == ANSWERED and number not in call.awaited():
            return
        event = Wake(kind, number, ok, packed, max(call.loop.now, self.now() - call.base))
        call.journal.append(event)
        self._segment(call, lambda: call.wake(event, self.settle_future))

    def settle_future(self, future: asyncio.Future[Any], event: Wake) -> None:
        """Gives an answer to whoever awaits it; one that does not load here is an error of the awaiter."""
        name = self.me.name
        if event.ok:
            try:
                value = unpack_value(event.packed, participant=name, live=self.live)
            except Exception as failure:
                future.set_exception(failure)
            else:
                future.set_result(value)
            return
        error = unpack_error(event.packed, participant=name, live=self.live)
        if isinstance(error, StopIteration):
            # A coroutine cannot raise it, so no future takes it.
            stand_in = RemoteError(f"StopIteration raised by a participant: {error}", participant=name)
            stand_in.__cause__ = error.__cause__
            error = stand_in
        future.set_exception(error)

    def _finish(self, call: AsyncCall) -> None:
        task = call.task
        assert task is not None
        self.drop(call)
        if task.cancelled():
            self._raised(call.sender, call.question, call.method, asyncio.CancelledError())
            return
        error = task.exception()
        if error is not None:
            if not isinstance(error, Exception):
                raise error
            self._raised(call.sender, call.question, call.method, error)
        elif call.question and call.sender is not None:
            self._answer(call.sender, call.question, call.method, task.result())

    def end(self, call: AsyncCall, fault: Exception) -> None:
        """A handler that cannot go on: whoever asked gets `fault` for an answer."""
        self.drop(call)
        self._raised(call.sender, call.question, call.method, fault)

    def drop(self, call: AsyncCall) -> None:
        """A handler goes no further."""
        self.calls.pop(call.number, None)
        self.armed.pop(call.number, None)
        call.close()

    def close(self) -> None:
        """Drops all suspended handlers: a rollback, or the end."""
        for call in self.calls.values():
            call.close()
        self.calls.clear()
        self.armed.clear()

    def fire(self, call: int, number: int) -> None:
        if call:
            self._wake(self.calls[call], TIMER, number, True, None)
        else:
            self.timers.remove(number)
            self.answered(number, True, _FIRED)
        self.drain()
