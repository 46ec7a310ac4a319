"""Input is held back while the system is suspended, so that its savepoint has all that was acknowledged.

What the program sends is acknowledged when it is in its log, and a savepoint has what its driver had taken by
then. An export of the savepoint is all that another machine gets. So before the savepoint the driver is asked
to take nothing more; it says so when all that was submitted before is taken. What comes later waits, and is
refused when the system ends, or taken when it goes on after all. Meanwhile no checkpoint is begun that nobody
has asked for: the savepoint is what the next start goes on from.

Who asks may be a command line, and may die before it has said how it ended: then input is taken again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.errors import Misuse, SystemHalted
from cutline.participant.driver import DRIVER
from cutline.participant.transport import Link

from .settings import Ticket

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("Holding",)


class Holding:
    """See the module's head."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        self.asked: list[Ticket] = []
        # Who suspends the system: the driver's program, over whatever link, or the link of a command line.
        self.holder: str | Link | None = None

    def hold(self, ticket: Ticket) -> None:
        """The reply follows when the driver takes nothing more; it says how far its log goes, if there is
        one that could take anything.

        Raises:
            Misuse: somebody else is suspending the system.
            SystemHalted: nothing will be taken any more anyhow.
        """
        c = self.c
        if c.halted is not None:
            raise SystemHalted(c.halted["text"])
        if self.holder not in (None, _who(ticket)):
            raise Misuse("the system is being suspended already, by another program or command")
        c.trigger.resting, self.holder = True, _who(ticket)
        seat = c.roster.get(DRIVER)
        if seat is None or seat.phase == "parked":
            c.reply(ticket, {"last": None})
            return
        self.asked.append(ticket)
        c.notice("hold_input")

    def held(self, last: int) -> None:
        """The driver takes nothing more, and its log goes that far."""
        asked, self.asked = self.asked, []
        for ticket in asked:
            self.c.reply(ticket, {"last": last})

    def let(self, ticket: Ticket) -> None:
        """Who suspends the system says that it goes on; others say nothing of it."""
        if self.holder in (None, _who(ticket)):
            self._let()

    def _let(self) -> None:
        self.asked, self.holder, self.c.trigger.resting = [], None, False
        self.c.notice("let_input")

    def tick(self) -> None:
        """Looks whether who has asked is still there."""
        holder = self.holder
        if holder is not None and not isinstance(holder, str) and holder not in self.c.clients:
            self._let()


def _who(ticket: Ticket) -> str | Link | None:
    """What stays the same of somebody who asks several times."""
    return ticket.asked.partition("-")[0] or ticket.link
