"""Pickling a value once more, because memory in it turned out to be shared.

Theory of operation. Who shares memory is known when everything has been pickled; then it is pickled again,
and what overlaps is written as one. Objects may make memory while they are pickled, such as a `__getstate__`
that returns two slices of what it has just computed. Asked again they make other memory, and what was found
out is of no use. So if the second attempt ends as the first one did, what objects make of themselves is kept
from then on, and taken again. Until one attempt succeeds all that the others have met stays alive: else an
address could be that of something else by then, or of nothing.
"""

from __future__ import annotations

from typing import Any

from .arrays import Unsharable
from .kinds import Kinds

__all__ = ("Attempts",)

# The second one is enough for memory that is there, the fourth one for memory that is made.
_MOST = 8


class Attempts:
    """The attempts at one value."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._alive: list[Any] = []

    def again(self, pickler: Any) -> None:
        """One is over, and another one needed. `pickler`: what it was made with; its memo has what it met.

        Raises:
            Unsharable: it would never end.
        """
        self._kinds.forget()
        self._alive.append(pickler)
        if len(self._alive) == _MOST:
            raise Unsharable("memory that is made, and shared in another way, each time that it is saved")
        if len(self._alive) > 1:
            self._kinds.keep_reduced()

    def over(self) -> None:
        """No more attempts."""
        if len(self._alive) > 1:
            self._kinds.drop_reduced()
