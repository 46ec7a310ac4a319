"""The shell round the coordinator's automata: clock, catalog, links, processes.

One thread owns everything and takes events from a queue, as in a participant. It holds no truth: the
catalog does. A new coordinator takes the lease, decides every begun id (all prepared but no row: abort),
and finds the participants again, because they look for it.

The automata decide (`barrier.commit`, `barrier.recovery`, `trigger`); this module performs: catalog rows,
manifests, packets. Bringing everybody back to a cut is `recover`'s work, spawns and requests are
`service`'s.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cutline.barrier import Member
from cutline.barrier.commit import (
    Announce,
    Begun,
    Bury,
    Complained,
    Decide,
    Forget,
    GiveUp,
    GlobalCommit,
    Prepare,
    Prepared,
    WriteManifest,
)
from cutline.barrier.recovery import Recovery
from cutline.barrier.wire import claims_from_doc
from cutline.errors import CheckpointAborted, CutlineError, Fenced, StorageError, SystemHalted
from cutline.participant.control import pack_control, unpack_control
from cutline.participant.driver import DRIVER
from cutline.participant.messages import pack_error
from cutline.participant.transport import Drained, Link, LinkDown, LinkRefused, LinkUp, PacketIn, Transport
from cutline.storage import Lease, Store
from cutline.storage.catalog import CheckpointRow, Fate

from .launch import Draining, Ended, Launcher
from .roster import Roster
from .settings import TAKING_PART, TICK, OpenCheckpoint, Settings, Ticket
from .trigger import Start, Trigger, usual_pause

__all__ = ("Coordinator", "Settings", "Ticket")

LEASE_SECONDS = 10.0
REPEAT_AFTER = 1.0
# Seconds that a beat may be behind what it tells of: it comes once a second and counts whole ones.
BEAT_SLACK = 2.0
SHORTEST = 0.005
# What participants say that is about who there is.
SERVICES = ("resolve", "spawn", "spawns_told", "told_of_spawns", "undelivered", "leaving", "departed")


def _unproved(_claims: Any, _departed: Any) -> list[str]:
    return []


class Coordinator:
    """See the module's head."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        lease: Lease,
        lineage: str,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        # These parts of the shell need the whole of it.
        from .committer import Committer
        from .departures import Departures
        from .effects import Effects
        from .moving import Mover
        from .nursery import Nursery
        from .output import Outputs
        from .overload import Overload
        from .parting import Parting
        from .recover import Recoverer
        from .service import Service

        self.settings = settings
        self.store = store
        self.catalog = store.catalog
        self.lease = lease
        self.lineage = lineage
        self.now = now
        self.wall = wall
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.roster = Roster()
        self.commit = GlobalCommit()
        if settings.break_mode == "skip-participant":
            # The check would refuse such a cut; the demo shows what it protects from.
            self.commit.prove = _unproved
        self.recovery = Recovery(self.catalog.epoch(lineage))
        pause = usual_pause(settings.interval) if settings.min_pause is None else settings.min_pause
        self.trigger = Trigger(settings.interval, pause, settings.full_every)
        self.open: dict[int, OpenCheckpoint] = {}
        line = next(each for each in self.catalog.lineages(settings.system) if each.lineage == lineage)
        # Ids are never reused; rows of old aborted ones may be gone.
        self.newest = line.next_checkpoint - 1
        self.origin = line.origin
        # The cut that the next one follows.
        self.parent = line.origin
        # Tidies what lies beside the store; raises StorageError where it cannot.
        self.swept: Callable[[], None] = lambda: None
        # The checkpoint that a start went on from; 0 for a beginning.
        self.resumed = 0
        self.committed = max((row.checkpoint for row in self._rows("committed")), default=0)
        if self.committed:
            self.parent = (lineage, self.committed)
        self.imaged: set[Member] = set()
        self.halted: dict[str, Any] | None = None
        self.ended: str | None = None
        self.clients: list[Link] = []
        self.damage: list[str] = []
        self.lease_at = now()
        self.repeat_at = now()
        self.recoverer = Recoverer(self)
        self.service = Service(self)
        self.nursery = Nursery(self)
        self.departures = Departures(self)
        self.overload = Overload(self)
        self.committer = Committer(self)
        self.effects = Effects(self)
        self.output = Outputs(self)
        self.mover = Mover(self)
        self.parting = Parting(self)

    def attach(self, transport: Transport, launcher: Launcher) -> None:
        """Gives the coordinator what moves its bytes and starts its processes."""
        self.transport = transport
        self.launcher = launcher

    def post(self, event: Any) -> None:
        """Takes an event from any thread."""
        self.queue.put(event)

    def _rows(self, *fates: Fate) -> list[CheckpointRow]:
        chosen: tuple[Fate, ...] = fates or ("begun", "committed", "aborted")
        return self.catalog.checkpoints(self.settings.system, lineage=self.lineage, fates=chosen)

    @property
    def epoch(self) -> int:
        """The epoch that data flows in, or will."""
        return self.recovery.state.epoch

    @property
    def flowing(self) -> bool:
        """Whether data flows: nobody is being restored, nothing halted."""
        recoverer = self.recoverer
        held = self.recovery.restoring or recoverer.gathering or recoverer.again_at is not None
        return not held and self.halted is None

    # -- the loop --------------------------------------------------------------------------

    def run(self) -> str:
        """Coordinates until the end; returns why it ended."""
        while self.ended is None:
            self.step(self.patience())
        return self.ended

    def patience(self) -> float:
        """Seconds that may pass without an event before something of our own is due."""
        # With a checkpoint under way only events, or its end, can let another one begin.
        idle = self._may_begin() and not self.open
        return min(TICK, max(SHORTEST, self.trigger.patience(self.now()))) if idle else TICK

    def step(self, wait: float) -> None:
        """One round: events, then what the clock wants."""
        event = self._next(wait)
        while event is not None and self.ended is None:
            self._take(event)
            event = self._next(0.0)
        if self.ended is None:
            self._by_the_clock()

    def _next(self, wait: float) -> Any:
        try:
            return self.queue.get(timeout=wait) if wait > 0 else self.queue.get_nowait()
        except queue.Empty:
            return None

    def _by_the_clock(self) -> None:
        now = self.now()
        if now - self.lease_at >= LEASE_SECONDS / 3:
            self.lease_at = now
            try:
                self.catalog.renew_lease(self.lease, LEASE_SECONDS, self.wall())
            except Fenced as error:
                self.ended = f"fenced: {error}"
                return
            except StorageError as error:
                self.notice("catalog_unreachable", text=str(error))
        for checkpoint in self.commit.overdue(now):
            self._overdue(checkpoint)
        if now - self.repeat_at >= REPEAT_AFTER:
            self.repeat_at = now
            self._repeat_initiate()
        self.recoverer.tick()
        self.nursery.tick()
        self.departures.tick()
        self.overload.tick()
        self.parting.tick()
        self.effects.tick()
        self.mover.tick()
        self.output.tick()
        self.begin_due()

    def _take(self, event: Any) -> None:
        if isinstance(event, PacketIn):
            self._packet(event)
        elif isinstance(event, LinkUp):
            self.service.greeted(event.link, unpack_control(event.greeting))
        elif isinstance(event, LinkDown):
            self.roster.disconnect(event.link)
            if event.link in self.clients:
                self.clients.remove(event.link)
        elif isinstance(event, Ended):
            self.effects.process_ended(event.launch)
            if not self.mover.took(event):
                self.recoverer.ended(event)
        elif isinstance(event, Draining):
            self.mover.drained_by_cluster(event.node)
        elif callable(event):
            event()
        elif not isinstance(event, (Drained, LinkRefused)):
            raise AssertionError(f"coordinator: an event nobody expects: {event!r}")

    def _packet(self, event: PacketIn) -> None:
        doc = unpack_control(event.payload)
        kind = doc["kind"]
        seat = self.roster.by_link(event.link)
        if kind == "request":
            self.service.request(event.link, doc)
            return
        if seat is None:
            return
        if kind == "beat":
            seat.beat = {**doc, "at": self.now()}
        elif kind.startswith("effect_"):
            self.effects.heard(seat, kind, doc)
        elif doc["epoch"] != self.epoch and kind != "restore_failed":
            return
        elif kind == "prepared":
            entry = self.open.get(doc["checkpoint"])
            if entry is not None:
                claims = claims_from_doc(doc["claims"], entry.members)
                report = {"image": doc["image"], "facts": doc["facts"]}
                self.feed(Prepared(seat.member, doc["checkpoint"], claims, report))
        elif kind == "complained":
            self.feed(Complained(seat.member, doc["checkpoint"], doc["reason"]))
        elif kind == "restored":
            self.recoverer.restored(seat, doc)
        elif kind == "restore_failed":
            self.recoverer.restore_failed(seat, doc)
        elif kind == "failed":
            self.recoverer.handler_failed(seat, doc)
        elif kind.startswith("emit_"):
            self.output.heard(seat, kind, doc)
        elif kind in SERVICES:
            self.service.handle(seat, kind, doc)

    # -- packets ---------------------------------------------------------------------------

    def say(self, link: Link | None, kind: str, **fields: Any) -> None:
        """One packet, with the epoch and the fencing token."""
        if link is not None:
            self.tell((link,), kind, **fields)

    def tell(self, links: Iterable[Link | None], kind: str, **fields: Any) -> None:
        """The same packet to several."""
        packet = pack_control(kind, epoch=self.epoch, token=self.lease.token, **fields)
        for link in links:
            if link is not None:
                link.send_control(packet)

    def view(self) -> dict[str, Any]:
        """What `initiate` says: all undecided ids, the newest begun, the newest committed."""
        undecided = [list(entry) for entry in self.commit.undecided]
        return {"undecided": undecided, "newest": self.newest, "committed": self.committed}

    def notice(self, what: str, **fields: Any) -> None:
        """Something that the driver and its user may want to know."""
        seat = self.roster.get(DRIVER)
        if seat is not None:
            self.say(seat.link, "notice", what=what, **fields)

    def reply(self, ticket: Ticket, value: Any) -> None:
        """Answers a request."""
        self.service.working.pop(ticket.asked, None)
        self.say(ticket.link, "reply", number=ticket.number, ok=True, value=value)

    def refuse(self, ticket: Ticket, error: Exception) -> None:
        """Answers a request with an error."""
        self.service.working.pop(ticket.asked, None)
        packed = pack_error(error, participant="coordinator")
        self.say(ticket.link, "reply", number=ticket.number, ok=False, value=packed)

    # -- checkpoints -----------------------------------------------------------------------

    def _may_begin(self) -> bool:
        seat = self.roster.get(DRIVER)
        return self.flowing and self.ended is None and seat is not None and seat.phase in TAKING_PART

    def begin_due(self) -> None:
        """Begins whatever is due and possible."""
        if not self._may_begin():
            return
        while True:
            start = self.trigger.next_start(self.now(), len(self.open))
            if start is None:
                return
            self._begin(start)

    def _begin(self, start: Start) -> None:
        roster = self.roster.members(*TAKING_PART)
        if self.settings.break_mode == "skip-participant":
            roster = tuple(member for member in roster if member.name != self._victim(roster))
        if not set(roster) <= self.imaged:
            # Somebody has no image yet and writes everything: the others' deltas would not show in it.
            start = start._replace(full=True)
        try:
            checkpoint = self.catalog.begin(
                self.lease,
                self.lineage,
                kind="full" if start.full else "delta",
                label=start.label,
                roster=[member.name for member in roster],
                now=self.wall(),
            )
        except CutlineError as error:
            self._tell_tickets(start.tickets, error)
            self.trigger.ended(self.now(), start.full, False)
            if isinstance(error, Fenced):
                self.ended = f"fenced: {error}"
            return
        self.newest = max(self.newest, checkpoint)
        self.open[checkpoint] = OpenCheckpoint(start, self.now(), dict(zip(roster, roster, strict=True)))
        deadline = self.now() + self.settings.checkpoint_timeout
        self.feed(Begun(checkpoint, start.full, roster, deadline))
        self.parting.answer(checkpoint)

    @staticmethod
    def _victim(roster: Sequence[Member]) -> str:
        return max(member.name for member in roster if member.name != DRIVER) if len(roster) > 1 else ""

    def feed(self, event: Any) -> None:
        """One event for the commit automaton; its actions, and what they cause, are performed."""
        pending = list(self.commit.handle(event))
        while pending:
            action = pending.pop(0)
            if isinstance(action, Prepare):
                self._initiate()
            elif isinstance(action, WriteManifest):
                pending += self.commit.handle(self.committer.compose(action))
            elif isinstance(action, Decide):
                outcome = self.committer.decide(action)
                if outcome is not None:
                    pending += self.commit.handle(outcome)
            elif isinstance(action, Announce):
                self._announce(action)
            elif isinstance(action, (Bury, Forget)):
                self.departures.performed(action)

    def _initiate(self) -> None:
        links = (seat.link for seat in self.roster if seat.phase == "running")
        self.tell(links, "initiate", **self.view())

    def _repeat_initiate(self) -> None:
        undecided = [checkpoint for checkpoint, _full in self.commit.undecided]
        waiting = dict.fromkeys(member for n in undecided for member in self.commit.waiting_for(n))
        seats = (self.roster.get(member.name) for member in waiting)
        links = [seat.link for seat in seats if seat is not None and seat.phase in ("running", "departed")]
        if links:
            self.tell(links, "initiate", **self.view())

    def _announce(self, action: Announce) -> None:
        entry = self.open.pop(action.checkpoint)
        full = entry.start.full
        self.trigger.ended(self.now(), full, action.committed)
        if action.committed:
            self.committed = max(self.committed, action.checkpoint)
            if self.parent is None or action.checkpoint > self.parent[1]:
                self.parent = (self.lineage, action.checkpoint)
            self.imaged |= set(action.roster)
        self.parting.decided(action.checkpoint, entry, action.committed)
        links = (seat.link for seat in self.roster)
        next_in = None if self.open else self.trigger.next_in(self.now())
        self.tell(links, "settled", checkpoint=action.checkpoint, committed=action.committed, next_in=next_in)
        if action.committed:
            value = {"checkpoint": action.checkpoint, "label": entry.start.label, "lineage": self.lineage}
            value["parked"] = self.parting.parked is not None
            value["waits"] = entry.summary.get("waits")
            self.output.committed(action.checkpoint, entry.summary.get("emits", {}))
            for ticket in entry.start.tickets:
                self.reply(ticket, value)
            self.effects.go_first(self._sweep)
        else:
            error = CheckpointAborted(
                f"checkpoint {action.checkpoint} was aborted: {action.reason}. The system "
                "goes on; ask again.",
                checkpoint=action.checkpoint,
            )
            self._tell_tickets(entry.start.tickets, error)
        self.notice(
            "committed" if action.committed else "aborted",
            checkpoint=action.checkpoint,
            reason=action.reason,
            full=full,
            label=entry.start.label,
            summary={key: value for key, value in entry.summary.items() if key != "extra"},
        )
        self.mover.decided(action.committed)

    def _sweep(self) -> None:
        try:
            self.store.sweep(self.lease, self.wall(), keep=self.settings.keep)
            self.swept()
        except StorageError as error:
            # Collection is put off, nothing is lost.
            self.notice("sweep_failed", text=str(error))

    def _tell_tickets(self, tickets: Sequence[Any], error: Exception) -> None:
        for ticket in tickets:
            self.refuse(ticket, error)

    def _overdue(self, checkpoint: int) -> None:
        """A checkpoint timed out, unless somebody is only busy: time inside a handler does not count."""
        waiting = self.commit.waiting_for(checkpoint)
        reasons = []
        longest = 0.0
        for member in waiting:
            seat = self.roster.get(member.name)
            beat = seat.beat if seat is not None else {}
            held = float(beat.get("held", 0.0))
            if beat.get("running"):
                reasons.append(f"{member.name} is inside {beat['running']} for {held:.0f} s")
                longest = max(longest, held + BEAT_SLACK)
            else:
                reasons.append(f"{member.name} has not answered")
        over = self.now() - self.open[checkpoint].began
        if over < min(self.settings.lost_after, self.settings.checkpoint_timeout + longest):
            return
        self.feed(GiveUp(checkpoint, f"timeout after {over:.0f} s: " + "; ".join(reasons)))

    def give_up_all(self, reason: str) -> None:
        """Aborts every undecided checkpoint."""
        for checkpoint, _full in self.commit.undecided:
            self.feed(GiveUp(checkpoint, reason))

    # -- the end ---------------------------------------------------------------------------

    def halt(self, text: str, error: bytes, participant: str | None = None) -> None:
        """Nothing is handled any more; the cuts stay usable."""
        if self.halted is None:
            self.halted = {
                "text": f"{text} The newest checkpoint is {self.committed}; it stays usable.",
                "error": error,
                "participant": participant,
                "checkpoint": self.committed,
            }
            self.give_up_all("the system halted")
            for ticket in self.trigger.queue:
                self.refuse(ticket.ticket, SystemHalted(self.halted["text"]))
            self.trigger.queue.clear()
            self.mover.halted(self.halted["text"])
            self.departures.halted(self.halted["text"])
        self.tell((seat.link for seat in self.roster), "halt", **self.halted)

    def stop(self, reason: str) -> None:
        """Ends every participant and this coordinator."""
        self.give_up_all(reason)
        for seat in self.roster:
            if seat.member.name == DRIVER:
                continue
            if seat.link is None:
                # It would not hear it, and only be waited for.
                self.launcher.end(seat)
            self.say(seat.link, "stop", reason=reason)
        self.ended = reason
