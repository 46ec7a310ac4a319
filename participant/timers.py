"""`cutline.after`, `cutline.sleep`, and the side of a desk that knows what is due when.

A timer is a question to nobody: it has a number, its waiters are those of an answer, and it is part of the
image until it fires, which is a step of its own at a boundary. Sleeps of suspended handlers
(``asyncio.sleep``, ``asyncio.timeout``) are timers of their loops, and fire in one order with these: what is
due first fires first, also where all of it came due while nothing ran.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cutline.errors import Misuse

from .async_call import AsyncCall
from .handle import Method, Ref, of_handler
from .likeness import likeness
from .messages import pack_arguments

if TYPE_CHECKING:
    from .desk import Desk

__all__ = ("CLOCK", "Queue", "Timers", "after", "make_timer", "sleep")

# What an async handler asks for besides messages, effects and people; no kind of message.
TIMER = 8
# Seconds: 30,000 years, which are as exact as the clock.
LONGEST = 1e12
# Who is asked, where messages have a participant's name.
CLOCK = "@clock"


def after(seconds: float, method: Any = None, *args: Any, **kwargs: Any) -> Ref[None]:
    """Calls a method once, so many seconds from now, whatever is lost or stopped meanwhile.

    The timer is part of the state. It fires once in the history that remains, also when the system was
    stopped and is started again; what came due meanwhile fires then, in the order in which it was due. Times
    are measured by the wall clock as far as it goes forward, so time in which nothing ran counts; where it
    goes back, by the steady one, so nothing waits longer than it was asked to.

    Args:
        seconds: 0 to 1e12.
        method: of this participant (``self.remind``), or of another one (``handle.remind``), which is told.
            Without it, ``await`` what is returned, or give it a method: ``.then(self.on_time)``.
        args, kwargs: its arguments; they travel like those of a message.

    Raises:
        OutsideHandler: no handler runs in this thread.
        Misuse: no number of seconds; a method that is none of these.
        CannotCapture: an argument cannot travel.
    """
    arm = of_handler(
        "ask_clock",
        "cutline.after and cutline.sleep are for handlers, and none runs here: call them in a method of a "
        "participant",
    )
    made: Ref[None] = arm(seconds, method, args, kwargs)
    return made


def sleep(seconds: float) -> Ref[None]:
    """``await cutline.sleep(seconds)`` in an async handler; see `after`."""
    return after(seconds)


def make_timer(
    desk: Desk, seconds: Any, method: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[int, bool, list[list[Any]]]:
    """The number of a timer, whether it is new, and what it calls."""
    good = isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds <= LONGEST
    if not good:
        raise Misuse(
            f"participant {desk.name!r}: a timer is given seconds, 0 to {LONGEST:g}; not {seconds!r:.80}",
            participant=desk.name,
        )
    waiters: list[list[Any]] = []
    detail, said = "", None
    if method is not None:
        target, called = _called(desk, method)
        where = f"arguments of {target or desk.name}.{called}"
        packed = pack_arguments(args, kwargs, participant=desk.name, where=where)
        waiters.append(["tell", target, called, packed])
        detail, said = called, [target, packed if type(packed) is list else likeness(packed)]
    number, is_new = desk.numbered(CLOCK, TIMER, detail, [seconds, said])
    return number, is_new, waiters


def _called(desk: Desk, method: Any) -> tuple[str, str]:
    """Whom a timer tells (empty: the participant itself), and what."""
    if isinstance(method, Method):
        return method.named()
    if desk.instance is not None and getattr(method, "__self__", None) is desk.instance:
        return "", method.__name__
    raise Misuse(
        f"participant {desk.name!r}: a timer calls a method of the participant itself (self.remind) or of a "
        f"handle (peer.remind), because its name is what the image keeps; not {method!r:.80}",
        participant=desk.name,
    )


class Queue:
    """Timers by number, and which of them is due first."""

    def __init__(self) -> None:
        self._due: dict[int, float] = {}
        # Those that are gone stay in it until they are the first.
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._due)

    def set(self, number: int, when: float) -> None:
        """A new one."""
        self._due[number] = when
        heapq.heappush(self._heap, (when, number))

    def remove(self, number: int) -> None:
        """It has fired."""
        del self._due[number]

    def first(self) -> tuple[float, int] | None:
        """When the earliest is due, and its number."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def to_doc(self) -> list[list[Any]]:
        """What an image holds."""
        return [[number, when] for number, when in self._due.items()]

    @classmethod
    def from_doc(cls, doc: Iterable[Sequence[Any]]) -> Queue:
        """The reverse of `to_doc`."""
        queue = cls()
        for number, when in doc:
            queue.set(number, when)
        return queue


class Timers(ABC):
    """The part of `cutline.participant.desk.Desk` that knows what is due when, in the seconds of `now`."""

    now: Callable[[], float]
    # Of each suspended handler its earliest timer: when, and its number within the call.
    armed: dict[int, tuple[float, int]]
    # Those that are questions.
    timers: Queue

    def arm(self, call: AsyncCall) -> None:
        """Notes when a handler's earliest timer is due."""
        timer = call.loop.next_timer()
        if timer is None:
            self.armed.pop(call.number, None)
        else:
            self.armed[call.number] = call.base + timer[0], timer[1]

    def _first(self) -> tuple[float, int, int] | None:
        """When the earliest is due, the call that it belongs to or 0, its number."""
        question = self.timers.first()
        first = None if question is None else (question[0], 0, question[1])
        if self.armed:
            sleep = min((when, call, number) for call, (when, number) in self.armed.items())
            first = sleep if first is None else min(first, sleep)
        return first

    @property
    def next_timer(self) -> float | None:
        """When the earliest timer is due."""
        first = self._first()
        return None if first is None else first[0]

    def fire_timers(self) -> bool:
        """Fires the timer that is due first; true if there was one."""
        first = self._first()
        if first is None or first[0] > self.now():
            return False
        self.fire(first[1], first[2])
        return True

    @abstractmethod
    def fire(self, call: int, number: int) -> None:
        """Wakes a handler by its loop's timer, or answers a question to the clock."""
