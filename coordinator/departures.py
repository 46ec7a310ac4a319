"""Those who leave: from their word to the end of their process, and what is kept of them afterwards.

One that is *leaving* has its name taken from it, and its peers ask anew. One that has *departed* is in no
checkpoint that is begun from then on; its last claims are in the catalog before that, so another coordinator
knows of it. When the commit automaton says so its process is told to stop, and its name is free; what is kept
of it is forgotten when no cut speaks of it any more (`barrier.commit`).

Each peer is told how many of its messages the one that left had handled. It heeds that after it has captured
whatever was undecided when it was said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cutline.barrier import Member
from cutline.barrier.commit import Bury, Forget, GiveUp, Leaves, WentBack
from cutline.barrier.cut import Departed
from cutline.barrier.wire import claims_from_doc
from cutline.errors import StorageError, SystemHalted

from .roster import Seat, SpawnId, spawn_of
from .settings import Ticket

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("Departures",)

# Rows of those who have left lie beside those of who is there; no participant's name begins so.
_ROW = "@left/"


_Row = tuple[int, dict[str, Any]]


class _Waiting(NamedTuple):
    """Somebody waits for the end of a participant."""

    name: str
    birth: int
    ticket: Ticket


class Departures:
    """See the module's head."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        self.put_off: dict[Member, dict[str, Any]] = {}
        self.waiting: list[_Waiting] = []
        # What the catalog and manifests keep of each.
        self.docs: dict[Member, dict[str, Any]] = {}

    # -- leaving -------------------------------------------------------------------------------

    def leaving(self, seat: Seat, doc: Mapping[str, Any]) -> None:
        """A participant handles nothing more: those it has had to do with are not to send to it."""
        c = self.c
        seat.leaving = True
        for name, birth in doc["peers"]:
            peer = c.roster.get(name)
            if peer is not None and peer.member.birth == birth:
                c.say(peer.link, "leaving", name=seat.member.name, birth=seat.member.birth)

    def departed(self, seat: Seat, doc: dict[str, Any]) -> None:
        """A participant has nothing left to do."""
        c = self.c
        member = seat.member
        if not c.flowing:
            self.put_off[member] = doc
            return
        if seat.phase != "running":
            return
        kept = {"name": member.name, "claims": doc["claims"], "spawn": list(seat.spawn or ())}
        try:
            c.catalog.put_member(c.lease, c.lineage, _row(member), member.birth, kept)
        except StorageError as error:
            c.notice("catalog_unreachable", text=str(error))
            self.put_off[member] = doc
            return
        seat.phase, seat.unhandled = "departed", doc["unhandled"]
        self.docs[member] = kept
        end = _end(kept)
        c.feed(Leaves(member, end))
        for peer in {**end.claims.incoming, **end.claims.outgoing}:
            other = c.roster.get(peer.name)
            if other is not None and other.member == peer:
                self._tell(other, member)

    def tick(self) -> None:
        """What was put off until data flows."""
        if not self.put_off or not self.c.flowing:
            return
        put_off, self.put_off = self.put_off, {}
        for member, doc in put_off.items():
            seat = self.c.roster.get(member.name)
            if seat is not None and seat.member == member and doc["epoch"] == self.c.epoch:
                self.departed(seat, doc)

    def performed(self, action: Bury | Forget) -> None:
        """What the commit automaton decides of those who have departed."""
        c = self.c
        member = action.member
        if isinstance(action, Forget):
            self.docs.pop(member, None)
            c.catalog.remove_member(c.lease, c.lineage, _row(member))
            return
        seat = c.roster.get(member.name)
        if seat is not None and seat.member == member:
            c.say(seat.link, "stop", reason="it has left")
            c.catalog.remove_member(c.lease, c.lineage, member.name)
            del c.roster.seats[member.name]
            c.notice("left", name=member.name, birth=member.birth, unhandled=seat.unhandled)
            if seat.link is None:
                # It would not hear it; nobody waits for it any more.
                c.launcher.end(seat)
        self._answer(member)

    def ended(self, seat: Seat) -> None:
        """The process of one that has departed is gone before its last checkpoints were decided."""
        c = self.c
        for checkpoint, _full in c.commit.undecided:
            if seat.member in c.commit.waiting_for(checkpoint):
                c.feed(GiveUp(checkpoint, f"{seat.member.name} has left"))

    # -- who hears of it -----------------------------------------------------------------------

    def _tell(self, seat: Seat, member: Member) -> None:
        c = self.c
        last = self.taken(member, seat.member)
        c.say(seat.link, "left", name=member.name, birth=member.birth, last=last, **c.view())

    def taken(self, member: Member, sender: Member) -> int:
        """How many messages of `sender` one that left has handled; 0 if nobody speaks of it any more."""
        end = self.c.commit.departed.get(member)
        into = end.claims.incoming.get(sender) if end is not None else None
        return into.processed if into is not None else 0

    def reconnected(self, seat: Seat) -> None:
        """What a participant was told may have been lost with its link."""
        for member in self.c.commit.departed:
            self._tell(seat, member)
        for other in self.c.roster:
            if other.leaving:
                name, birth = other.member
                self.c.say(seat.link, "leaving", name=name, birth=birth)

    def gone(self, sender: Member, name: str, births: list[int]) -> list[list[int]]:
        """Which of these incarnations of a name are gone, and how many messages of `sender` each took."""
        seat = self.c.roster.get(name)
        alive = seat.member.birth if seat is not None and seat.phase != "departed" else None
        return [[birth, self.taken(Member(name, birth), sender)] for birth in births if birth != alive]

    def knows(self, name: str) -> bool:
        """Whether somebody of that name has left, and cuts still speak of them."""
        return any(member.name == name for member in self.docs)

    def born_and_left(self, spawn: SpawnId) -> Member | None:
        """Whom that spawn had made, if they have left already."""
        for member, doc in self.docs.items():
            if spawn_of(doc) == spawn:
                return member
        return None

    def tell_spawner(self, spawner: Seat, member: Member) -> None:
        """The spawner of one that was born and has left."""
        self._tell(spawner, member)

    def all_for(self, sender: Member) -> list[list[Any]]:
        """Who has left, for one that takes a cut's state: name, birth, how many of its messages they took."""
        return [[*member, self.taken(member, sender)] for member in self.c.commit.departed]

    # -- waiting -------------------------------------------------------------------------------

    def wait(self, name: str, ticket: Ticket) -> None:
        """The reply comes when whoever has that name now is gone."""
        seat = self.c.roster.get(name)
        if seat is None:
            self.c.reply(ticket, {"gone": True})
        elif self.c.halted is not None:
            raise SystemHalted(self.c.halted["text"])
        else:
            self.waiting.append(_Waiting(name, seat.member.birth, ticket))

    def _answer(self, member: Member) -> None:
        done = [entry for entry in self.waiting if (entry.name, entry.birth) == member]
        self.waiting = [entry for entry in self.waiting if (entry.name, entry.birth) != member]
        for entry in done:
            self.c.reply(entry.ticket, {"gone": True})

    def halted(self, text: str) -> None:
        """Nobody leaves any more."""
        waiting, self.waiting = self.waiting, []
        for entry in waiting:
            self.c.refuse(entry.ticket, SystemHalted(text))

    # -- coordinators and recoveries -----------------------------------------------------------

    def take_over(self, rows: Mapping[str, _Row]) -> dict[str, _Row]:
        """Takes what an older coordinator has kept of those who left; returns the rows of who is there."""
        c = self.c
        self.docs = {Member(doc["name"], birth): doc for name, (birth, doc) in rows.items() if _is_row(name)}
        c.commit.handle(WentBack({member: _end(doc) for member, doc in self.docs.items()}))
        present = {}
        for name, (birth, doc) in rows.items():
            if Member(name, birth) in self.docs:
                # Its last checkpoints were aborted, and its process will be told to stop.
                c.catalog.remove_member(c.lease, c.lineage, name)
            elif not _is_row(name):
                present[name] = birth, doc
        return present

    def to_doc(self, departed: Mapping[Member, Departed]) -> list[Any]:
        """What a manifest says of those that its cut still speaks of."""
        return [[member.birth, self.docs[member]] for member in departed]

    def went_back(self, kept: list[Any]) -> None:
        """Everybody goes back to a cut by which these had left, and nobody else."""
        c = self.c
        for name in c.catalog.members(c.lineage):
            if _is_row(name):
                c.catalog.remove_member(c.lease, c.lineage, name)
        self.docs = {Member(doc["name"], birth): doc for birth, doc in kept}
        for member, doc in self.docs.items():
            c.catalog.put_member(c.lease, c.lineage, _row(member), member.birth, doc)
        c.commit.handle(WentBack({member: _end(doc) for member, doc in self.docs.items()}))
        self.put_off.clear()
        for seat in c.roster:
            seat.leaving = False
        waiting, self.waiting = self.waiting, []
        for entry in waiting:
            c.reply(entry.ticket, {"gone": False})


def _row(member: Member) -> str:
    return f"{_ROW}{member.birth}/{member.name}"


def _is_row(name: str) -> bool:
    return name.startswith(_ROW)


def _end(doc: Mapping[str, Any]) -> Departed:
    """What the commit automaton knows of one that has left."""
    spawn = spawn_of(doc)
    origin = (Member(spawn.spawner, spawn.birth), spawn.number) if spawn is not None else None
    return Departed(claims_from_doc(doc["claims"]), origin)
