"""A system that is suspended: a savepoint, and no process of it left. It goes on when it is started again.

Whether it only waits for people and timers, a checkpoint shows: nobody has anything under way, and no message
is. Nothing but an answer, a timer or this program can end that, so what was true in the cut is true after it.
Signs of life say when taking such a checkpoint is worth while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cutline.errors import CheckpointAborted, RolledBack
from cutline.participant.clock import wall
from cutline.storage import Store

from .people import Question, asked

__all__ = ("SOONER", "Suspended", "free_label", "suspended_at", "wait_until_still")

# Seconds: a system whose next timer is due sooner is not worth suspending.
SOONER = 60.0
_PAUSE, _LONGEST = 0.1, 1.0
_LABEL = "suspended-"


class Suspended(NamedTuple):
    """What a system was suspended with.

    ``questions``: those that are open; ``next_timer``: when the earliest timer is due, in seconds since 1970,
    None if there is none. Whoever starts the system again goes by these.
    """

    checkpoint: int
    label: str
    questions: tuple[Question, ...]
    next_timer: float | None


def suspended_at(store: Store, system: str, lineage: str, checkpoint: int, label: str) -> Suspended:
    """What there is to say of a savepoint that a system is suspended with; its end closes the store."""
    row = store.catalog.find(system, str(checkpoint), lineage)
    questions = tuple(each for each in asked(store, system) if each.state == "open")
    return Suspended(checkpoint, label, questions, row.summary["waits"]["timer"])


def free_label(taken: Iterable[str | None]) -> str:
    """A label for a suspension that was given none."""
    numbers = [int(label.removeprefix(_LABEL)) for label in taken if label is not None and _is_own(label)]
    return f"{_LABEL}{max(numbers, default=0) + 1}"


def _is_own(label: str) -> bool:
    return label.startswith(_LABEL) and label.removeprefix(_LABEL).isdecimal()


def wait_until_still(request: Callable[..., Any], timeout: float | None, sooner: float) -> None:
    """Returns when the system waits for people, and for timers that are not due sooner, alone.

    Raises:
        TimeoutError: it did not come to that in so many seconds.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _PAUSE
    while True:
        try:
            if request("status", timeout=30.0)["still"]:
                waits = request("checkpoint")["waits"]
                if waits["still"] and (waits["timer"] is None or waits["timer"] - wall() >= sooner):
                    return
        except (CheckpointAborted, RolledBack):
            # Of a loss; nothing of this session depends on what was undone.
            pause = _PAUSE
        left = _LONGEST if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"after {timeout:g} s the system still does something else than wait for people and timers; "
                "it goes on"
            )
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST)
