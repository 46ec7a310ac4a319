"""One call of an ``async def`` handler that has not returned: its requests, its journal, and its re-run.

What an image holds of it is a value (`to_doc`): the message that started it, the requests it has made
(number, target, digest) and the journal of what woke it (answers and timers, in order). Restoring means
running the handler again from the top: its requests are compared with the recorded ones and not sent
again, the journal is fed in order, and at its end the handler stands where it stood.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from cutline.barrier import Member
from cutline.errors import ReplayMismatch

from .replay_loop import ReplayLoop

__all__ = ("AsyncCall", "Request", "Wake")

ANSWERED, TIMER = "a", "t"


class Request(NamedTuple):
    """One message that the handler sent: the question's number (0 for a tell), to whom, what."""

    number: int
    target: str
    digest: int


class Wake(NamedTuple):
    """One journal entry: an answer (number of the question) or a timer (number within the call).

    `at` is the time of the handler's loop, in seconds since the handler began.
    """

    kind: str
    number: int
    ok: bool
    packed: Any
    at: float


class AsyncCall:
    """A running or suspended async handler."""

    __slots__ = (
        "number", "sender", "question", "method", "arguments", "requests", "journal", "made", "loop",
        "task", "waiting", "known", "base", "participant", "stepped",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        participant: str,
        sender: Member | None,
        question: int,
        method: str,
        arguments: Any,
        base: float,
    ) -> None:
        self.number = number
        self.participant = participant
        self.sender = sender
        self.question = question
        self.method = method
        self.arguments = arguments
        self.requests: list[Request] = []
        self.journal: list[Wake] = []
        self.made = 0
        self.loop = ReplayLoop(f"{participant}.{method}")  # type: ignore[abstract]
        self.task: asyncio.Task[Any] | None = None
        self.waiting: dict[int, list[asyncio.Future[Any]]] = {}
        self.known: dict[int, Wake] = {}
        # The wall clock when the handler began: its loop counts from there, over restores too.
        self.base = base
        # Whether it has made a step of a log.
        self.stepped = False

    def to_doc(self) -> list[Any]:
        """What an image holds."""
        return [
            self.number,
            list(self.sender) if self.sender else None,
            self.question,
            self.method,
            self.arguments,
            [list(request) for request in self.requests],
            [list(wake) for wake in self.journal],
            self.base,
        ]

    @classmethod
    def from_doc(cls, doc: list[Any], participant: str) -> AsyncCall:
        """A call as an image holds it, not yet run."""
        number, sender, question, method, arguments, requests, journal, base = doc
        asker = Member(*sender) if sender else None
        call = cls(number, participant, asker, question, method, arguments, base)
        call.requests = [Request(*request) for request in requests]
        call.journal = [Wake(*wake) for wake in journal]
        return call

    def request(
        self, target: str, digest: int, fresh: Callable[[], int], earlier: Callable[[], Iterable[int]] = tuple
    ) -> tuple[int, bool]:
        """The number of the next request, and whether it is new (to be sent).

        `earlier`: digests of the same request under the names that things in it had.

        Raises:
            ReplayMismatch: a re-run asks for something else than the first run at this place.
        """
        index, self.made = self.made, self.made + 1
        if index < len(self.requests):
            recorded = self.requests[index]
            if recorded.target != target or (
                recorded.digest != digest and recorded.digest not in set(earlier())
            ):
                raise ReplayMismatch(
                    f"{self.participant}.{self.method} was run again after a restore; its "
                    f"request {index + 1} "
                    f"went to {target!r} with other contents than the first time (then: "
                    f"{recorded.target!r}). An async handler must do the same again with the same answers: "
                    "no randomness, no clock, no iteration over sets, and no state that other handlers "
                    "change, before its last await.",
                    participant=self.participant,
                    method=self.method,
                )
            return recorded.number, False
        number = fresh()
        self.requests.append(Request(number, target, digest))
        return number, True

    def is_at(self, target: str) -> bool:
        """Whether a re-run is at a request that went there the first time."""
        return self.made < len(self.requests) and self.requests[self.made].target == target

    def has_said(self, digest: int) -> bool:
        """Whether that request had this digest."""
        return self.requests[self.made].digest == digest

    def repeats(self, target: str) -> bool:
        """Whether a re-run is at such a request, which counts as made again then."""
        again = self.is_at(target)
        self.made += again
        return again

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Runs the handler to its first suspension, or its end."""

        def begin() -> None:
            self.task = self.loop.create_task(coroutine)

        self.loop.run_ready(begin)

    def future(self, number: int) -> asyncio.Future[Any]:
        """What an ``await ref`` waits for."""
        future = self.loop.create_future()
        self.waiting.setdefault(number, []).append(future)
        return future

    def has_asked(self, number: int) -> bool:
        """Whether it asked that itself.

        If a re-run awaits it and nobody has it any more, the first run gave it up: a timeout is to follow.
        """
        return any(request.number == number for request in self.requests)

    def awaited(self) -> list[int]:
        """The questions this handler waits for, in the order it came to them."""
        return [n for n, futures in self.waiting.items() if any(not future.done() for future in futures)]

    def wake(self, event: Wake, settle: Callable[[asyncio.Future[Any], Wake], None]) -> None:
        """Feeds one event and runs to the next suspension, or the end. The caller has journaled it."""
        self.loop.advance(event.at)
        if event.kind == TIMER:
            self.loop.run_ready(lambda: self.loop.fire(event.number))
            return
        self.known[event.number] = event
        futures = self.waiting.pop(event.number, None)
        if futures is None:
            raise ReplayMismatch(
                f"{self.participant}.{self.method} was run again after a restore and did not wait for the "
                f"answer of question {event.number} where it had waited for it the first time.",
                participant=self.participant,
                method=self.method,
            )

        def deliver() -> None:
            for future in futures:
                if not future.done():
                    settle(future, event)

        self.loop.run_ready(deliver)

    @property
    def done(self) -> bool:
        """Whether the handler has returned or raised."""
        return self.task is not None and self.task.done()

    def close(self) -> None:
        """Drops the handler without running it further (a rollback)."""
        self.loop.close_tasks()
