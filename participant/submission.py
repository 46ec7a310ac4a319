"""What user threads hand to the driver's runner, and how its outcome gets back to them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, NamedTuple

from .room import Room

__all__ = ("Place", "Submission", "Taken", "Waited", "fail", "copy")


class Taken:
    """What becomes of a submission that nobody waits for: if it is not taken, its answer is the reason.

    It has of `Future` what the runner calls; making one of those takes as long as most of a question.
    ``room``, ``size``: what it has taken of the room for input, and gives back when it is decided.
    """

    __slots__ = ("_answer", "_is_done", "_room", "_size")

    def __init__(self, answer: Future[Any] | None, room: Room | None = None, size: int = 0) -> None:
        self._answer = answer
        self._is_done = False
        self._room, self._size = room, size

    @property
    def is_heard(self) -> bool:
        """Whether somebody hears of it if it is not taken."""
        return self._answer is not None

    def done(self) -> bool:
        """Whether it is decided."""
        return self._is_done

    def set_result(self, _nothing: None) -> None:
        """It counts from now on."""
        self._is_done = True
        self._leave()

    def set_exception(self, error: BaseException) -> None:
        """It was not taken."""
        self._is_done = True
        self._leave()
        fail(self._answer, error)

    def _leave(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.leave(self._size)


class Waited(Taken):
    """What becomes of a submission whose thread goes on when it is decided."""

    __slots__ = ("_decided", "_error")

    def __init__(self, answer: Future[Any] | None, room: Room | None = None, size: int = 0) -> None:
        super().__init__(answer, room, size)
        self._error: BaseException | None = None
        # A lock that whoever decides lets go of: an Event costs several times as much.
        self._decided = threading.Lock()
        self._decided.acquire()

    @property
    def is_heard(self) -> bool:
        return True

    def set_result(self, _nothing: None) -> None:
        super().set_result(None)
        self._decided.release()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        super().set_exception(error)
        self._decided.release()

    def wait(self) -> None:
        """Until it is decided. Raises the reason if it was not taken."""
        self._decided.acquire()
        if self._error is not None:
            raise self._error


class Place(NamedTuple):
    """Where in a loop a submission stands, so that a re-run of the body finds it again."""

    loop: str
    step: int
    call: int
    digest: int


class Submission(NamedTuple):
    """One thing that user code wants done; `kind` is ask, tell, spawn or advance."""

    kind: str
    number: int
    target: str
    method: str
    arguments: Any
    key: str | None
    durable: bool
    place: Place | None
    generation: int
    taken: Future[Any] | Taken
    # Own questions whose Refs are among the arguments: somebody may ask for their answers.
    carried: tuple[int, ...] = ()

    @property
    def logged(self) -> bool:
        """Whether it is in the log before it counts."""
        return self.durable and self.place is None and self.kind != "advance"


def fail(future: Future[Any] | Taken | None, error: BaseException) -> None:
    if future is not None and not future.done():
        future.set_exception(error)


def copy(done: Future[Any], to: Future[Any] | None) -> None:
    if to is None or to.done():
        return
    error = done.exception()
    if error is not None:
        to.set_exception(error)
    else:
        to.set_result(done.result())
