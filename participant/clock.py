"""The wall clock, as all of Cutline reads it, and a participant's own time, which never goes back.

Wall clocks jump: they are set, a machine was asleep, a state goes on elsewhere, weeks later. What a
participant measures (sleeps, timers) follows the wall clock forward, at once and however far, so that what
came due meanwhile is due. Backward it does not follow: it goes on from where it was, at the pace of the
steady clock, also over a restore. So nothing ever waits longer than it was asked to.

For tests, the environment variable CUTLINE_CLOCK names a file with a number: seconds by which the clock of
every process that has it is ahead. The file is read each time, so writing it moves the clock of a running
system.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from cutline.errors import Misuse

__all__ = ("CLOCK", "Clock", "wall")

CLOCK = "CUTLINE_CLOCK"


def wall() -> float:
    """Seconds since 1970.

    Raises:
        Misuse: CUTLINE_CLOCK names no file with a number.
    """
    path = os.environ.get(CLOCK)
    if not path:
        return time.time()
    try:
        return time.time() + float(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise Misuse(
            f"the environment variable {CLOCK} names a file with a number of seconds: {error}"
        ) from error


class Clock:
    """A participant's time; see the module's head. Called, it gives seconds since 1970, more or less."""

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall = wall
        self._steady = steady
        self._ahead = wall() - steady()

    def __call__(self) -> float:
        steady = self._steady()
        self._ahead = max(self._ahead, self._wall() - steady)
        return steady + self._ahead

    def not_before(self, moment: float) -> None:
        """It was that late already."""
        self._ahead = max(self._ahead, moment - self._steady())
