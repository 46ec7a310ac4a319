"""What user threads hand to the driver's runner, and how its outcome gets back to them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple

__all__ = ("Place", "Submission", "fail", "copy")


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
    taken: Future[Any]
    # Own questions whose Refs are among the arguments: somebody may ask for their answers.
    carried: tuple[int, ...] = ()

    @property
    def logged(self) -> bool:
        """Whether it is in the log before it counts."""
        return self.durable and self.place is None and self.kind != "advance"


def fail(future: Future[Any] | None, error: BaseException) -> None:
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
