"""Moving participants off a node of a cluster: a checkpoint, their ends, a recovery that starts them again.

Nothing of this is a protocol of its own. What was done since the checkpoint is undone and done again, as
after any loss; no message is lost. The difference to a lost node is that the cut is as young as can be, that
all who move end together, so that there is one recovery, and that no budget of deaths is used up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.errors import CutlineError, StorageError, SystemHalted
from cutline.participant.driver import DRIVER

from .launch import Ended
from .roster import Seat
from .runner import Ticket
from .trigger import Wanted

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("Mover",)

# Checkpoints that may come to nothing before an older cut has to do.
_TRIES = 3
# Seconds that calls of the world which are under way have to come to their end.
_REST = 15.0


class Mover:
    """See the module's head."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        self.nodes: dict[str, int] = {}
        self.ending: dict[str, None] = {}
        self.moved: dict[str, None] = {}
        # Who is to end, and until when its calls are waited for.
        self.resting: dict[str, float] = {}
        self.tickets: list[Ticket] = []

    def drain(self, node: str, ticket: Ticket | None = None) -> None:
        """Moves all participants off a node; the ticket's reply says where each is now.

        Raises:
            Misuse: there is no such node, or somebody cannot be placed anywhere else.
        """
        c = self.c
        seats = self._seats_on(node)
        c.launcher.leave(node, seats)
        if not seats and not self.ending:
            if ticket is not None:
                c.reply(ticket, {})
            return
        if ticket is not None:
            self.tickets.append(ticket)
        if node not in self.nodes:
            self.nodes[node] = 0
            c.notice("draining", node=node, names=[seat.member.name for seat in seats])
            c.trigger.want(Wanted(Ticket(None, 0), None))
            c.begin_due()

    def drained_by_cluster(self, node: str) -> None:
        """The cluster says that a node goes away."""
        try:
            self.drain(node)
        except CutlineError as error:
            self.c.notice("not_moved", node=node, text=str(error))

    def _seats_on(self, node: str) -> list[Seat]:
        return [s for s in self.c.roster if s.node == node and s.launch and s.member.name != DRIVER]

    def decided(self, committed: bool) -> None:
        """A checkpoint was decided: now is the moment, or another one is tried."""
        c = self.c
        for node, tries in list(self.nodes.items()):
            if not committed and tries + 1 < _TRIES:
                self.nodes[node] = tries + 1
                c.trigger.want(Wanted(Ticket(None, 0), None))
                continue
            del self.nodes[node]
            for seat in self._seats_on(node):
                # From now on nothing is granted to it.
                self.ending[seat.launch] = None
                self.moved[seat.member.name] = None
                self.resting[seat.launch] = c.now() + _REST
        if self.resting:
            self._look_for_calls()
            self.tick()

    def _look_for_calls(self) -> None:
        try:
            self.c.effects.look_for_calls()
        except StorageError as error:
            self.c.notice("catalog_unreachable", text=str(error))

    def tick(self) -> None:
        """Who moves ends when its calls of the world have come to their end, or took too long for that."""
        c = self.c
        for launch, until in list(self.resting.items()):
            if launch in c.effects.under_way.values() and c.now() < until:
                continue
            del self.resting[launch]
            seat = c.roster.by_launch(launch)
            if seat is not None:
                c.launcher.end(seat)

    def took(self, event: Ended) -> bool:
        """Whether an end was one of ours; with the last one everybody goes back to the cut."""
        c = self.c
        if event.launch not in self.ending:
            return False
        del self.ending[event.launch]
        self.resting.pop(event.launch, None)
        seat = c.roster.by_launch(event.launch)
        if seat is not None:
            seat.pid, seat.link, seat.launch, seat.phase = 0, None, "", "lost"
        if not self.ending and c.halted is None and c.ended is None:
            c.recoverer.recover(f"{', '.join(self.moved)} moved to other nodes")
        return True

    def resumed(self) -> None:
        """Data flows again."""
        if self.ending or not self.moved:
            return
        places = {seat.member.name: seat.node for seat in self.c.roster if seat.member.name in self.moved}
        self.moved.clear()
        self.c.notice("moved", places=places)
        tickets, self.tickets = self.tickets, []
        for ticket in tickets:
            self.c.reply(ticket, places)

    def halted(self, text: str) -> None:
        """Nobody is moved any more."""
        tickets, self.tickets = self.tickets, []
        self.nodes.clear()
        for launch in self.resting:
            # It stays where it is.
            del self.ending[launch]
        self.resting.clear()
        for ticket in tickets:
            self.c.refuse(ticket, SystemHalted(text))
