"""A system that is suspended: a savepoint, and no process of it left. It goes on when it is started again.

Whether it only waits for people and timers, a checkpoint shows: nobody has anything under way, and no message
is. Nothing but an answer, a timer or this program can end that, so what was true in the cut is true after it.
Signs of life say when taking such a checkpoint is worth while.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cutline.errors import CheckpointAborted, CutlineError, RolledBack
from cutline.participant.clock import wall
from cutline.storage import Store

from .loops import sealed
from .people import Question, asked
from .sinks import publish_the_rest

__all__ = ("SOONER", "Suspended", "free_label", "suspended_cut", "wait_until_still")

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


def _suspended_at(store: Store, system: str, lineage: str, checkpoint: int, label: str) -> Suspended:
    """What there is to say of a savepoint that a system is suspended with; its end closes the store."""
    row = store.catalog.find(system, str(checkpoint), lineage)
    questions = tuple(each for each in asked(store, system) if each.state == "open")
    return Suspended(checkpoint, label, questions, row.summary["waits"]["timer"])


def suspended_cut(
    request: Callable[..., Any], say: Callable[[str], None], store: Store, system: str, label: str
) -> Suspended:
    """Takes the savepoint that a system is suspended with; what has to follow is its end.

    Whatever was acknowledged to the program is in it, and nothing is acknowledged any more.

    Raises:
        CheckpointAborted: there is no savepoint, or a loss has come between it and input that is in the log
            alone; the system goes on. What else a request raises: the system goes on too.
    """
    try:
        request("hold_input", timeout=30.0)
        request("rest_effects", timeout=30.0, seconds=15.0)
        taken: dict[str, Any] = {}

        def savepoint() -> int:
            taken.update(request("savepoint", label=label))
            return int(taken["checkpoint"])

        number = sealed(savepoint)
        publish_the_rest(request, say, 30.0)
        found = _suspended_at(store, system, taken["lineage"], number, label)
        # A loss, also of the coordinator, may have let input in again.
        last = request("hold_input", timeout=30.0)["last"]
        row = store.catalog.find(system, str(number), taken["lineage"])
        if last is not None and row.summary["input"] < last:
            raise CheckpointAborted(
                f"the system was not suspended: a loss came between, and savepoint {row.label!r} does not"
                " have all the input that was acknowledged. The system goes on; suspend it once more, with"
                " another label",
                checkpoint=number,
            )
    except BaseException:
        # If nobody hears it any more, nobody takes input either. What was raised first is told.
        with contextlib.suppress(CutlineError, TimeoutError):
            request("let_input", timeout=30.0)
        raise
    return found


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
