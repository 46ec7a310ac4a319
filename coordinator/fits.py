"""Whether what is on its way in a cut can arrive in this program: the last question before data flows.

A participant that takes up the image of another program says which methods it has, what it has handled of
whom, and what of its own waits for whom (`cutline.participant.fitting`). When the last one has confirmed, it
is all put together here. The coordinator loads no class of the user's for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cutline.barrier import Member
from cutline.barrier.recovery import Restoring
from cutline.errors import SchemaMismatch
from cutline.participant.fitting import unmet
from cutline.participant.messages import pack_error

if TYPE_CHECKING:
    from .roster import Seat
    from .runner import Coordinator

__all__ = ("Fits",)


class Fits:
    """What the participants of one restore have said."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        self._epoch = -1
        self._told: dict[Member, dict[str, Any]] = {}

    def halts(self, seat: Seat, fit: dict[str, Any] | None) -> bool:
        """A participant confirms. True: it was the last one, and something does not fit: the system halts."""
        c = self._c
        if self._epoch != c.epoch:
            self._epoch = c.epoch
            self._told.clear()
        if fit is not None:
            self._told[seat.member] = fit
            # It may have been renamed: from now on cuts have the new name.
            seat.class_name = fit["class_name"]
        state = c.recovery.state
        if not self._told or not isinstance(state, Restoring) or any(m != seat.member for m in state.waiting):
            return False
        problems = unmet(self._told)
        if not problems:
            return False
        name, problem = problems[0]
        more = f"; and {len(problems) - 1} more, which `cutline check` lists" if len(problems) > 1 else ""
        text = f"participant {name!r} cannot take checkpoint {state.checkpoint}: {problem.text}{more}"
        error = SchemaMismatch(
            text,
            participant=name,
            path=problem.path,
            class_name=problem.name,
            what=problem.what,
            checkpoint=state.checkpoint,
        )
        c.halt(f"{text}.", pack_error(error, participant=name), name)
        return True
