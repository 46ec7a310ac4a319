"""The coordinator publishes what participants have emitted: one writer, in the order of the checkpoints.

Each capture says how far its participant had emitted, so a commit tells what is to be published: an entry for
each participant and sink (`outlet`). Entries are taken in order. The horizon is raised first, so that no
recovery goes back behind what has left; then the participant is asked for the records, or to call a function
with them; then the sink writes them together with their numbers; then the catalog notes how far it is, for
people and for functions; then the participant forgets them.

After a recovery, and in a new coordinator, those who had something in the newest checkpoint say what is owed
before anything goes on. Nothing here is truth: a sink knows what it has, participants know what it has not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cutline.barrier import Member
from cutline.errors import CutlineError, Fenced, OutputRefused, StorageError
from cutline.storage.fork_apart import comes_from
from cutline.storage.sinks import Origin, Record

from .outlet import Entry, Opened, Outlet
from .roster import Seat
from .settings import Ticket

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("Outputs",)

# Seconds after which a participant is asked again.
ASK_AGAIN = 1.0


class Outputs:
    """See the module's head."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        sinks = coordinator.settings.sinks
        self.outlets = {name: Outlet(name, doc, coordinator.post) for name, doc in sinks.items()}
        # The epoch that the entries are of; who still has to say what is owed, and when he was asked.
        self.epoch = -1
        self.awaited: dict[str, float] = {}
        # The newest checkpoint at that time, and what it says was emitted.
        self.newest: tuple[int, Mapping[str, Mapping[str, int]]] = 0, {}
        self.horizon = 0
        self.known: dict[str, dict[Origin, int]] | None = None
        # Sinks that something waits for and the program does not name; people were told of them.
        self.missing: set[str] = set()
        self.told_blocked = False
        self.again_at = 0.0
        self.resting: Ticket | None = None
        self.rest_until = 0.0

    def take(self, opened: Mapping[str, Opened | StorageError]) -> None:
        """The sinks as they were opened at the start. One that is only out of reach is tried again later."""
        for name, each in opened.items():
            outlet = self.outlets[name]
            if isinstance(each, Opened):
                outlet.take(each)
            else:
                self._failed(outlet, each)
            self._tell_news(outlet)

    def close(self) -> None:
        """Lets others have the sinks."""
        for outlet in self.outlets.values():
            outlet.close()

    # -- what participants and commits say --------------------------------------------------------

    def committed(self, checkpoint: int, emits: Mapping[str, Mapping[str, int]]) -> None:
        """A checkpoint has committed in which participants had emitted so much for each sink."""
        for name, sinks in emits.items():
            seat = self.c.roster.get(name)
            if seat is None:
                continue
            for sink, upto in sinks.items():
                outlet = self._outlet(sink)
                entry = Entry(checkpoint, seat.member.name, seat.member.birth, upto)
                if outlet is not None and not outlet.add(entry):
                    self._say_done(outlet, name)

    def _outlet(self, sink: str) -> Outlet | None:
        outlet = self.outlets.get(sink)
        if outlet is None and sink not in self.missing:
            self.missing.add(sink)
            self.c.notice("sink_missing", sink=sink)
        return outlet

    def heard(self, seat: Seat, kind: str, doc: dict[str, Any]) -> None:
        """A packet of a participant, in this epoch."""
        if kind == "emit_cut":
            self.c.trigger.want_early()
            return
        if kind == "emit_owes":
            self._owes(seat.member, doc["owed"])
            return
        outlet = self.outlets.get(doc["sink"])
        if outlet is None or outlet.phase != "asking" or doc["round"] != outlet.round:
            return
        if kind == "emit_unfit":
            self._failed(outlet, OutputRefused(doc["text"], sink=outlet.name))
        elif kind == "emit_given":
            self._given(outlet, seat, doc)
        else:
            self._have(outlet, seat, doc)

    def _owes(self, member: Member, owed: Mapping[str, list[list[int]]]) -> None:
        if self.awaited.pop(member.name, None) is None:
            return
        for sink, pairs in owed.items():
            outlet = self._outlet(sink)
            if outlet is not None:
                for checkpoint, upto in pairs:
                    outlet.owe(Entry(checkpoint, member.name, member.birth, upto))
        # Who has not heard yet that the newest one has committed does not owe what that one holds.
        newest, emits = self.newest
        self.committed(newest, {name: sinks for name, sinks in emits.items() if name == member.name})

    def _have(self, outlet: Outlet, seat: Seat, doc: dict[str, Any]) -> None:
        name, birth = seat.member
        records = [
            Record(Origin(lineage, name, birth), number, checkpoint, body)
            for number, checkpoint, lineage, body in doc["records"]
        ]
        if records:
            more = doc["more"]
            entry = outlet.current
            outlet.publish(records, lambda found: self._published(outlet, entry, more, found))
            return
        outlet.finish()
        outlet.phase = "idle"
        self._say_done(outlet, name)
        self._advance(outlet, self.c.now())

    def _published(
        self, outlet: Outlet, entry: Entry | None, more: bool, found: dict[Origin, int] | CutlineError
    ) -> None:
        """The sink's thread has done it, or not."""
        if isinstance(found, CutlineError):
            self._failed(outlet, found)
            return
        self._reached(outlet, found)
        outlet.phase = "idle"
        if not more and entry is not None and outlet.current == entry:
            outlet.finish()
            self._say_done(outlet, entry.participant)
        self._advance(outlet, self.c.now())

    def _given(self, outlet: Outlet, seat: Seat, doc: dict[str, Any]) -> None:
        name, birth = seat.member
        self._reached(outlet, {Origin(lineage, name, birth): n for lineage, n in doc["numbers"].items()})
        outlet.phase = "idle"
        if doc["error"]:
            text = f"function of sink {outlet.name!r}, in {name!r}: {doc['error']}"
            self._failed(outlet, OutputRefused(text, sink=outlet.name))
            return
        self._advance(outlet, self.c.now())

    def _reached(self, outlet: Outlet, numbers: dict[Origin, int]) -> None:
        if not numbers:
            return
        if outlet.told:
            self.c.notice("sink_back", sink=outlet.name)
        outlet.reached(numbers)
        self._save(outlet)
        self._tell_news(outlet)

    def _failed(self, outlet: Outlet, error: CutlineError) -> None:
        if outlet.failed(str(error), self.c.now()):
            self.c.notice("sink_down", sink=outlet.name, text=str(error))
        self._tell_news(outlet)
        # A function is open wherever its participant is.
        outlet.phase = "idle" if outlet.is_function else "closed"

    def _tell_news(self, outlet: Outlet) -> None:
        for text in outlet.news():
            self.c.notice("sink_changed", sink=outlet.name, text=text)

    def _say_done(self, outlet: Outlet, name: str) -> None:
        seat = self.c.roster.get(name)
        if seat is not None:
            after = outlet.after(*seat.member)
            self.c.say(seat.link, "emit_done", sink=outlet.name, after=after)

    # -- the clock -------------------------------------------------------------------------------

    def tick(self) -> None:
        """What is to be begun, and asked again."""
        now = self.c.now()
        if self.c.flowing and self.epoch != self.c.epoch:
            self._begin_epoch()
        for outlet in self.outlets.values():
            if outlet.unsaved and now >= self.again_at:
                self._save(outlet)
        if self.c.flowing and self.epoch == self.c.epoch:
            self._await(now)
            for outlet in self.outlets.values():
                self._advance(outlet, now)
        self._rest(now)

    def _begin_epoch(self) -> None:
        """Data flows after a recovery, or here for the first time: what is owed is asked for."""
        c = self.c
        first, self.epoch = self.epoch < 0, c.epoch
        for outlet in self.outlets.values():
            outlet.forget()
        row = getattr(c.recoverer, "row", None)
        if row is None and first:
            row = next(iter(c._rows("committed")[-1:]), None)
        self.newest = (0, {}) if row is None else (row.checkpoint, row.summary.get("emits", {}))
        self.awaited = {name: 0.0 for name in self.newest[1] if c.roster.get(name) is not None}

    def _await(self, now: float) -> None:
        for name, asked_at in list(self.awaited.items()):
            seat = self.c.roster.get(name)
            if seat is None:
                del self.awaited[name]
            elif now - asked_at >= ASK_AGAIN:
                self.awaited[name] = now
                self.c.say(seat.link, "emit_owed")

    def _advance(self, outlet: Outlet, now: float) -> None:
        """The next thing that can be done for a sink, if there is one."""
        if not outlet.entries or self.awaited or not self._may_publish(outlet):
            return
        if outlet.phase in ("closed", "idle") and now < outlet.again_at:
            return
        if outlet.phase == "closed":
            outlet.open(lambda found: self._opened(outlet, found))
        elif outlet.phase == "idle":
            self._next(outlet, now)
        elif outlet.phase == "asking" and now - outlet.asked_at >= ASK_AGAIN and self._is_unheard(outlet):
            self._ask(outlet, now)

    def _is_unheard(self, outlet: Outlet) -> bool:
        """Who is busy answers later, and need not do so several times; a function was perhaps busy."""
        entry = outlet.current
        seat = self._seat_of(entry) if entry is not None else None
        return outlet.is_function or seat is None or seat.link is not outlet.asked_link

    def _may_publish(self, outlet: Outlet) -> bool:
        if not self.c.effects.live and not self.told_blocked:
            self.told_blocked = True
            self.c.notice("output_blocked", sink=outlet.name)
        return self.c.effects.live

    def _opened(self, outlet: Outlet, found: dict[Origin, int] | CutlineError) -> None:
        if isinstance(found, CutlineError):
            self._failed(outlet, found)
            return
        outlet.phase = "idle"
        for origin, number in found.items():
            outlet.numbers[origin] = max(number, outlet.numbers.get(origin, 0))
        self._advance(outlet, self.c.now())

    def _next(self, outlet: Outlet, now: float) -> None:
        while outlet.entries:
            entry = outlet.entries[0]
            if self._seat_of(entry) is not None:
                break
            # It has left, and does not do so before all of it is published.
            outlet.entries.pop(0)
        else:
            return
        if self._learn(outlet) and self._raise_horizon(entry.checkpoint):
            outlet.current = entry
            self._ask(outlet, now)

    def _seat_of(self, entry: Entry) -> Seat | None:
        seat = self.c.roster.get(entry.participant)
        return seat if seat is not None and seat.member == entry.member else None

    def _ask(self, outlet: Outlet, now: float) -> None:
        entry = outlet.current
        assert entry is not None
        outlet.phase, outlet.asked_at, outlet.asked_link = "asking", now, None
        seat = self._seat_of(entry)
        if seat is None:
            # It has left meanwhile; that nothing was left to publish is all it could have said.
            outlet.finish()
            outlet.phase = "idle"
            return
        if seat.phase != "running" or seat.link is None:
            return
        outlet.asked_link = seat.link
        outlet.round += 1
        self.c.say(
            seat.link,
            "emit_give" if outlet.is_function else "emit_want",
            sink=outlet.name,
            round=outlet.round,
            upto=entry.upto,
            after=outlet.after(*seat.member),
            function=outlet.doc.get("function", ""),
        )

    # -- the catalog -----------------------------------------------------------------------------

    def _learn(self, outlet: Outlet) -> bool:
        """What the catalog knows of how far a sink is; a sink's own word may be lost with its journal."""
        c = self.c
        if self.known is None:
            try:
                before = comes_from(c.catalog, c.settings.system, c.lineage)
                self.known = {}
                for (sink, origin), number in c.catalog.output(before).items():
                    self.known.setdefault(sink, {})[origin] = number
            except StorageError as error:
                self._catalog_away(error)
                return False
        for place, number in self.known.pop(outlet.name, {}).items():
            outlet.numbers[place] = max(number, outlet.numbers.get(place, 0))
        return True

    def _raise_horizon(self, checkpoint: int) -> bool:
        c = self.c
        if checkpoint <= self.horizon:
            return True
        try:
            c.catalog.publishing(c.lease, c.lineage, min(checkpoint, c.committed))
        except Fenced as error:
            c.ended = f"fenced: {error}"
            return False
        except StorageError as error:
            self._catalog_away(error)
            return False
        self.horizon = checkpoint
        return True

    def _save(self, outlet: Outlet) -> None:
        c = self.c
        try:
            rows = {(outlet.name, origin): number for origin, number in outlet.unsaved.items()}
            c.catalog.published(c.lease, rows)
            outlet.unsaved.clear()
        except Fenced as error:
            c.ended = f"fenced: {error}"
        except StorageError as error:
            self._catalog_away(error)

    def _catalog_away(self, error: StorageError) -> None:
        self.again_at = self.c.now() + ASK_AGAIN
        self.c.notice("catalog_unreachable", text=str(error))

    # -- people ----------------------------------------------------------------------------------

    def rest(self, ticket: Ticket, seconds: float) -> None:
        """The reply comes when all is published that can be, or after so many seconds."""
        if self.resting is not None:
            self.c.reply(self.resting, {"left": self.left()})
        self.resting, self.rest_until = ticket, self.c.now() + seconds
        self._rest(self.c.now())

    def left(self) -> dict[str, str]:
        """Sinks that something waits for, and why."""
        why = "" if self.c.effects.live else "output of this fork is blocked"
        found = {name: outlet.trouble or why for name, outlet in self.outlets.items() if outlet.entries}
        return {**found, **{name: "the program does not name it" for name in self.missing}}

    def _rest(self, now: float) -> None:
        ticket = self.resting
        if ticket is None:
            return
        moving = any(outlet.entries and not outlet.told for outlet in self.outlets.values())
        waits = self.c.flowing and (self.awaited or (moving and self.c.effects.live))
        if not waits or now >= self.rest_until:
            self.resting = None
            self.c.reply(ticket, {"left": self.left()})
