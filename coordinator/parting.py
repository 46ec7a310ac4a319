"""The driver's process goes away: for good, or for a while.

On a cluster that outlives the driver nothing else tells that it is gone but its link. One that has been
down for `driver_grace` seconds means that the program has ended or was killed, and the system stops at its
newest checkpoint; the next run of the program resumes there. A program that comes sooner need not wait: it
asks the old coordinator to leave, which does so if its driver's link is down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.errors import Misuse
from cutline.participant.driver import DRIVER

if TYPE_CHECKING:
    from .runner import Coordinator, Ticket

__all__ = ("Parting",)


class Parting:
    """See the module's head."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        self.seen_at = coordinator.now()

    @property
    def linked(self) -> bool:
        """Whether the driver's process is connected."""
        seat = self.c.roster.get(DRIVER)
        return seat is not None and seat.link is not None

    def tick(self) -> None:
        """Stops a system whose driver does not come back."""
        c = self.c
        grace = c.settings.driver_grace
        if self.linked:
            self.seen_at = c.now()
        elif grace is not None and c.now() - self.seen_at > grace:
            c.stop(f"the driver has been gone for {grace:g} s")

    def leave(self, ticket: Ticket) -> None:
        """The next run of the program wants the system that its former run has left behind to stop."""
        c = self.c
        if self.linked:
            raise Misuse("the driver of this system is connected; stop that program first")
        c.reply(ticket, {"checkpoint": c.committed})
        c.stop("the driver is gone, and its program was started again")
