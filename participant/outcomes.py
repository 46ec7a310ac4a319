"""Answers that user threads of the driver wait for: they hear of them when the runner lets go.

A thread that is woken in the middle of a step, or between two, could only wait for the interpreter until
the runner waits for its part, and would be woken a second time then. So they are told at the last moment
before it waits; after a step that did not wait and may be followed by another, at its end.
"""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from .runner import Runner
from .submission import Taken

__all__ = ("OutcomeRunner",)


class OutcomeRunner(Runner):
    """The part of the driver's runner that wakes who waits for an answer."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._in_step = False
        self._untold: list[tuple[Future[Any] | Taken, Any]] = []

    def tell(self, future: Future[Any] | Taken, outcome: Any) -> None:
        """Whoever waits for this hears of it soon; who hears something else first keeps that."""
        self._untold.append((future, outcome))
        if not self._in_step:
            self.tell_all()

    def tell_all(self) -> None:
        """Whoever is to hear of something hears it now."""
        # A callback may have something told in its turn.
        while self._untold:
            untold, self._untold = self._untold, []
            for future, outcome in untold:
                # Whoever waits may have given it up, at any moment.
                with suppress(InvalidStateError):
                    future.set_result(outcome)

    def step(self, wait: float) -> None:
        self._in_step = True
        try:
            super().step(wait)
        finally:
            self._in_step = False
            if wait <= 0 or self.ended is not None:
                self.tell_all()

    def is_idle(self) -> bool:
        self.tell_all()
        return super().is_idle()
