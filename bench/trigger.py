"""Checkpoints at a rate while something is measured, and whether there were enough of them to count."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType

import cutline

__all__ = ("Trigger", "enough")

# How long a checkpoint may take before it is an error that it has not ended.
_PATIENCE = 60.0
# Of those asked for at no more than one a second, so many have to be taken: any machine can.
_SHARE = 0.5


class Trigger:
    """Checkpoints at a rate, in a thread of its own, while `wanted` is set.

    The first comes half an interval after it was set, when there is something to write. An error of a
    checkpoint ends the thread and is raised by `check` and where the ``with`` ends: without checkpoints there
    would be nothing that slows anything down.
    """

    def __init__(self, system: cutline.System, per_second: float) -> None:
        self.system, self.pause = system, 1 / per_second
        self.wanted = threading.Event()
        self.taken = 0
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._take_all()
        except Exception as error:
            self._error = error

    def _take_all(self) -> None:
        due: float | None = None
        while not self._over.is_set():
            if not self.wanted.wait(0.05):
                due = None
                continue
            due = time.monotonic() + self.pause / 2 if due is None else due
            self._over.wait(max(0.0, due - time.monotonic()))
            due = max(due + self.pause, time.monotonic())
            if self.wanted.is_set() and not self._over.is_set():
                self.system.checkpoint()
                self.taken += 1

    def check(self) -> None:
        """Raises what ended the thread, if something did."""
        if self._error is not None:
            raise RuntimeError(f"no more checkpoints were taken: {self._error!r}") from self._error

    def end(self) -> None:
        """No more checkpoints; raises what ended the thread before.

        Raises:
            RuntimeError: a checkpoint failed, or does not end.
        """
        self._over.set()
        self.wanted.clear()
        self._thread.join(_PATIENCE)
        self.check()
        if self._thread.is_alive():
            raise RuntimeError(f"a checkpoint has not ended within {_PATIENCE:g} s")

    def __enter__(self) -> Trigger:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _at: TracebackType | None) -> None:
        if kind is None:
            self.end()
        else:
            # What is under way says more than what it did to the checkpoints.
            self._over.set()


def enough(taken: Sequence[int], seconds: Sequence[float], per_second: float) -> None:
    """Whether so many checkpoints in spells of so many seconds show what the rate costs.

    A high rate may be more than a machine can keep up with, but each spell has to have one.

    Raises:
        AssertionError: they do not.
    """
    asked = per_second * sum(seconds)
    if min(taken) < 1:
        raise AssertionError(
            f"{taken.count(0)} of {len(taken)} spells had no checkpoint; asked for: {per_second:g} a second"
        )
    if per_second <= 1 and sum(taken) < _SHARE * asked:
        raise AssertionError(f"{sum(taken)} checkpoints were taken where {asked:.0f} were asked for")
