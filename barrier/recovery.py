"""Bringing everybody back to one cut, in one new epoch, behind a barrier of its own::

    Steady(epoch) --begin(epoch+1, cut, roster)--> Restoring(waiting) --all confirmed--> Steady(epoch+1)
                                                       |
                                                       +--somebody lost or failed--> begin again, epoch+2

Data flows only after all have confirmed `restored(epoch, cut)`: before that a survivor that is still in
the old epoch could take and ack a message and then forget it by rolling back (RULES 8). Confirmations
of an older epoch count for nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from .messages import Member

__all__ = ("Recovery", "Restoring", "Steady", "RollBack", "Resume", "Begin", "Confirmed")


class Begin(NamedTuple):
    """Every begun id is decided, the epoch was raised, the cut chosen: bring `roster` to it."""

    epoch: int
    checkpoint: int
    roster: tuple[Member, ...]


class Confirmed(NamedTuple):
    """`member` holds the state of `checkpoint` and waits in `epoch`."""

    member: Member
    epoch: int


class RollBack(NamedTuple):
    """Tell a member (alive or started anew) to restore."""

    member: Member
    epoch: int
    checkpoint: int


class Resume(NamedTuple):
    """All are there: let data flow."""

    epoch: int
    checkpoint: int
    roster: tuple[Member, ...]


class Steady(NamedTuple):
    """Data flows in `epoch`."""

    epoch: int


class Restoring(NamedTuple):
    """Waiting for confirmations of `epoch`."""

    epoch: int
    checkpoint: int
    roster: tuple[Member, ...]
    # Those whose confirmation is outstanding; each leaves it by its own.
    waiting: dict[Member, None]


class Recovery:
    """The coordinator's view of whether data flows."""

    def __init__(self, epoch: int) -> None:
        self.state: Steady | Restoring = Steady(epoch)

    def handle(self, event: Begin | Confirmed) -> list[RollBack | Resume]:
        """One event in, its actions out."""
        if isinstance(event, Begin):
            assert event.epoch > self.state.epoch, f"epoch {event.epoch} is not newer than {self.state.epoch}"
            waiting = dict.fromkeys(event.roster)
            self.state = Restoring(event.epoch, event.checkpoint, event.roster, waiting)
            asks: list[RollBack | Resume] = [RollBack(m, event.epoch, event.checkpoint) for m in event.roster]
            return asks or self._finish(self.state)
        state = self.state
        if not isinstance(state, Restoring) or event.epoch != state.epoch:
            return []
        state.waiting.pop(event.member, None)
        return [] if state.waiting else self._finish(state)

    def _finish(self, state: Restoring) -> list[RollBack | Resume]:
        self.state = Steady(state.epoch)
        return [Resume(state.epoch, state.checkpoint, state.roster)]

    @property
    def restoring(self) -> bool:
        """Whether confirmations are outstanding."""
        return isinstance(self.state, Restoring)
