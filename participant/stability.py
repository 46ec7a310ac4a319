"""Which answers a committed checkpoint holds: only those can no recovery undo.

An answer is *unstable* from its arrival until a checkpoint that was captured after it has committed. A
rollback undoes what is unstable then; an undone answer stays undone, even if its question is asked again
and answered again, since user code holds the first one.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

from cutline.errors import CutlineError

from .submission import fail

__all__ = ("Stability",)


class Stability:
    """The answers of one driver."""

    def __init__(self) -> None:
        # True for those whose loss user code is told of.
        self.unstable: dict[int, bool] = {}
        self.undone: dict[int, CutlineError] = {}
        self._covered: dict[int, list[int]] = {}
        self._waiters: dict[int, list[Future[None]]] = {}

    def answered(self, number: int, told: bool) -> None:
        """An answer has come."""
        self.unstable[number] = told

    def captured(self, checkpoint: int) -> None:
        """All answers so far are in this capture."""
        self._covered[checkpoint] = list(self.unstable)

    def settled(self, checkpoint: int, committed: bool) -> None:
        """The capture's fate."""
        numbers = self._covered.pop(checkpoint, [])
        if committed:
            self._are_stable(numbers)

    def _are_stable(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.unstable.pop(number, None)
            for waiter in self._waiters.pop(number, []):
                if not waiter.done():
                    waiter.set_result(None)

    def wait(self, number: int, waiter: Future[None]) -> None:
        """Completes `waiter` when the answer is stable; fails it when the answer was or is undone."""
        if number in self.undone:
            fail(waiter, self.undone[number])
        elif number in self.unstable:
            self._waiters.setdefault(number, []).append(waiter)
        else:
            waiter.set_result(None)

    def rolled_back(self, checkpoint: int, error: CutlineError) -> bool:
        """Everything went back to `checkpoint`; whether user code has seen something that is undone."""
        for covering in [n for n in self._covered if n <= checkpoint]:
            # The word that it committed was lost on its way here.
            self._are_stable(self._covered[covering])
        seen = any(self.unstable.values())
        self.undone.update(dict.fromkeys(self.unstable, error))
        self.unstable.clear()
        self._covered.clear()
        self.fail_all(error)
        return seen

    def fail_all(self, error: CutlineError) -> None:
        """Nobody waits any more."""
        while self._waiters:
            for waiter in self._waiters.popitem()[1]:
                fail(waiter, error)
