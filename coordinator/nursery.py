"""Newborns and names: who asked for whom, what became of it, and what a name means.

A spawn is known by its spawner and the spawner's number for it, so one that is asked for again (over another
link, by a restored spawner, of another coordinator) is answered, not done twice. A name that somebody else
has is an error, unless the spawner wants whoever has it.

Nobody knows a name before its spawner's request has left for here, but over another link it may come sooner.
So before a name that is unknown here is nobody's, everybody is asked once; what they have asked for comes
before their answer. Who wants to know while answers are outstanding may have heard the name after some were
given: for that one everybody is asked once more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from cutline.barrier import Member
from cutline.errors import DuplicateName, SpawnFailed
from cutline.participant.allowing import is_restricted
from cutline.participant.driver import DRIVER
from cutline.participant.messages import pack_error, unpack_error
from cutline.participant.program import is_vouched, take_main
from cutline.participant.saying import said

from .roster import Seat, SpawnId
from .settings import TAKING_PART

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("Nursery", "TRIES")

# Processes of one newborn that may end before it is up.
TRIES = 3


class _Asked(NamedTuple):
    """A spawn that is put off."""

    spawner: Seat
    doc: dict[str, Any]


class _Birth(NamedTuple):
    """A newborn that is under way."""

    spawn: SpawnId
    record: dict[str, Any]


@dataclass
class _Doubt:
    """A name that may be nobody's: who wanted to know before everybody was asked, from whom an answer is
    outstanding, and who has wanted to know since."""

    askers: list[tuple[Seat, list[int]]]
    waiting: dict[Member, None] = field(default_factory=dict)
    late: list[tuple[Seat, list[int]]] = field(default_factory=list)


class Nursery:
    """See the module's head."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        # Newborns that have not said hello yet, and what they are made of.
        self.births: dict[Member, _Birth] = {}
        # Whether the driver has said of all it spawned; until then a name unknown here may be a newborn's.
        self.spawns_known = True
        self.put_off: dict[SpawnId, _Asked] = {}
        self.doubts: dict[str, _Doubt] = {}

    def tick(self) -> None:
        """What was put off: until data flows, or until whoever has the name is up."""
        for name in list(self.doubts):
            self._drop_the_gone(name)
        if not self.put_off or not self.c.flowing:
            return
        put_off, self.put_off = self.put_off, {}
        for asked in put_off.values():
            # After a recovery the spawner has said it again.
            if asked.doc["epoch"] == self.c.epoch:
                self.spawn(*asked)

    def recovering(self) -> None:
        """Everybody goes back: who asked asks again."""
        self.spawns_known = False
        self.doubts.clear()
        self.put_off.clear()

    # -- newborns ------------------------------------------------------------------------------

    def spawn(self, spawner: Seat, doc: dict[str, Any]) -> None:
        """A participant asks for a newborn; `spawned` is the answer, some day."""
        c = self.c
        spawn = SpawnId(*spawner.member, doc["number"])
        name, record = doc["name"], doc["record"]
        present = c.roster.get(name)
        if not c.flowing:
            # A coordinator that took over hears it again before it knows whether data flows.
            self.put_off[spawn] = _Asked(spawner, doc)
        elif (gone := c.departures.born_and_left(spawn)) is not None:
            # It lived and left before its spawner heard of its birth.
            self._answer(spawn, Seat(gone, record["class_name"], record["options"]), None)
            c.departures.tell_spawner(spawner, gone)
        elif present is None:
            self._start(spawn, name, record)
        elif present.phase != "running":
            if present.spawn != spawn:
                self.put_off[spawn] = _Asked(spawner, doc)
        elif present.spawn == spawn or record["get"]:
            self._answer(spawn, present, None)
        else:
            error = DuplicateName(
                f"{spawner.member.name!r} spawned {name!r}, and there is a participant of that name already; "
                "names are identities: choose another, or spawn it with get_if_exists=True",
                participant=name,
            )
            self._answer(spawn, present, pack_error(error, participant=spawner.member.name))

    def _start(self, spawn: SpawnId, name: str, record: dict[str, Any]) -> None:
        c = self.c
        birth = c.catalog.next_birth(c.lease, c.lineage)
        seat = Seat(Member(name, birth), record["class_name"], record["options"], spawn=spawn)
        c.roster.seats[name] = seat
        self.births[seat.member] = _Birth(spawn, record)
        # Loading it runs it, whatever `allow=` says of names: it may come from a store that is trusted only
        # so far. Without it the running program's own classes count.
        main = record.get("main")
        if main and (not is_restricted() or is_vouched(main, record.get("vouched"), c.catalog.seals.key)):
            take_main(c.launcher.program, main)
        self._launch(seat)

    def _launch(self, seat: Seat) -> None:
        c = self.c
        try:
            c.launcher.start(seat, "born", c.now(), args=self.births[seat.member].record["args"])
        except SpawnFailed as error:
            self.failed(seat, pack_error(error, participant=seat.member.name))

    def died(self, seat: Seat, text: str) -> None:
        """The process of a newborn is gone before it said hello; perhaps that was none of its doing."""
        seat.deaths += 1
        if not seat.overdue and seat.deaths < TRIES:
            self._launch(seat)
            return
        error = SpawnFailed(text, participant=seat.member.name)
        self.failed(seat, pack_error(error, participant=seat.member.name))

    def born(self, seat: Seat) -> None:
        """A newborn is up and may be used."""
        birth = self.births.pop(seat.member, None)
        if birth is not None:
            seat.deaths = 0
            self.c.notice("born", name=seat.member.name, class_name=seat.class_name)
            self._answer(birth.spawn, seat, None)

    def failed(self, seat: Seat, error: bytes) -> None:
        """A newborn did not come up: its spawner hears why, its seat is free."""
        c = self.c
        c.roster.seats.pop(seat.member.name, None)
        birth = self.births.pop(seat.member, None)
        if birth is not None:
            self._answer(birth.spawn, seat, error)

    def _answer(self, spawn: SpawnId, seat: Seat, error: bytes | None) -> None:
        c = self.c
        spawner = c.roster.get(spawn.spawner)
        if spawner is not None and spawner.member.birth == spawn.birth:
            c.say(
                spawner.link,
                "spawned",
                number=spawn.number,
                name=seat.member.name,
                birth=seat.member.birth,
                address=seat.address,
                error=error,
                **c.view(),
            )
        if error is not None and spawn.spawner != DRIVER:
            # Perhaps nobody asks the newborn for anything.
            fault = unpack_error(error, participant=seat.member.name, live={})
            text = said(fault)
            c.notice("spawn_failed", name=seat.member.name, spawner=spawn.spawner, text=text)

    # -- names ---------------------------------------------------------------------------------

    def resolve(self, seat: Seat, name: str, births: list[int]) -> None:
        """A participant asks who has a name; it has channels with these incarnations of it."""
        if self._is_nobodys(name):
            doubt = self.doubts.get(name)
            if doubt is None:
                self._ask_everybody(name, [(seat, births)])
            elif (seat, births) not in (*doubt.askers, *doubt.late):
                doubt.late.append((seat, births))
            return
        self._tell(seat, name, births)

    def _ask_everybody(self, name: str, askers: list[tuple[Seat, list[int]]]) -> None:
        doubt = self.doubts[name] = _Doubt(askers)
        for other in self.c.roster:
            if other.phase == "running":
                doubt.waiting[other.member] = None
                self.c.say(other.link, "spawning", name=name)

    def _is_nobodys(self, name: str) -> bool:
        """Whether nothing is known here of such a name, nor can be expected to."""
        return self.c.roster.get(name) is None and not self._is_coming(name)

    def _is_coming(self, name: str) -> bool:
        """Whether somebody of that name may be about to be born."""
        if not self.spawns_known or not self.c.flowing:
            return self.c.roster.get(name) is None
        return any(asked.doc["name"] == name for asked in self.put_off.values())

    def _tell(self, seat: Seat, name: str, births: list[int]) -> None:
        c = self.c
        found = c.roster.get(name)
        leaves = found is not None and (found.leaving or found.phase == "departed")
        if self._is_coming(name) or (found is not None and found.phase not in (*TAKING_PART, "departed")):
            # It is on its way; the asker asks again when it hears nothing.
            c.say(seat.link, "wait", name=name)
            return
        there = None if leaves else found
        c.say(
            seat.link,
            "resolved",
            name=name,
            birth=there.member.birth if there is not None else None,
            address=there.address if there is not None else "",
            gone=c.departures.gone(seat.member, name, births),
            left=leaves or c.departures.knows(name),
            **c.view(),
        )

    def told_of_spawns(self, seat: Seat, name: str) -> None:
        """A participant has asked for all that it has spawned so far."""
        doubt = self.doubts.get(name)
        if doubt is None:
            return
        doubt.waiting.pop(seat.member, None)
        self._end_doubt(name)

    def _end_doubt(self, name: str) -> None:
        if self.doubts[name].waiting:
            return
        doubt = self.doubts.pop(name)
        known = not self._is_nobodys(name)
        for asker, births in (*doubt.askers, *(doubt.late if known else ())):
            self._tell(asker, name, births)
        if doubt.late and not known:
            self._ask_everybody(name, doubt.late)

    def _drop_the_gone(self, name: str) -> None:
        """Who has left, or is on its way out, since it was asked will not answer, and spawns nobody."""
        waiting = self.doubts[name].waiting
        for member in list(waiting):
            seat = self.c.roster.get(member.name)
            if seat is None or seat.member != member or seat.phase != "running":
                del waiting[member]
        self._end_doubt(name)

    def reconnected(self, seat: Seat) -> None:
        """What a participant was asked may have been lost with its link."""
        for name, doubt in self.doubts.items():
            if seat.member in doubt.waiting:
                self.c.say(seat.link, "spawning", name=name)
