"""The end of a system's processes: wait for them, then see to it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from cutline.participant.driver import DRIVER

from .launch import Launcher
from .roster import Seat

__all__ = ("await_ends",)


def await_ends(launcher: Launcher, seats: Iterable[Seat], patience: float) -> None:
    """Waits until the participants have ended; ends those that do not within `patience` seconds."""
    waiting = [seat for seat in seats if seat.launch and seat.member.name != DRIVER]
    deadline = time.monotonic() + patience
    while waiting and time.monotonic() < deadline:
        waiting = [seat for seat in waiting if launcher.alive(seat)]
        time.sleep(0.01)
    for seat in waiting:
        launcher.end(seat)
