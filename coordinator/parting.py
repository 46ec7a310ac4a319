"""The driver's process goes away: for good, for a while, or so that another program can come.

On a cluster that outlives the driver nothing else tells that it is gone but its link. One that has been
down for `driver_grace` seconds means that the program has ended or was killed, and the system stops at its
newest checkpoint; the next run of the program resumes there. A program that comes sooner need not wait: it
asks the old coordinator to leave, which does so if its driver's link is down.

A driver that *leaves* comes to rest first (`cutline.participant.leaving`) and is captured at rest. From that
checkpoint on it is *parked*: its image and its claims in that cut are its answer to every later one, and its
confirmation of every recovery. A recovery below that cut would undo what the program has left as settled,
with nobody there to hear of it: the system halts instead. A system that has gone on without a program does so
again when a later one is killed: everybody goes back to the newest checkpoint, and the driver's image in it
is what stands for it. What that program had told afterwards is in the log, for the next one.

A driver that *comes* asks to be let in, gets a launch of its own, and greets as one that has no state.
Everybody goes back to a checkpoint, the newcomer with them. It replaces a parked driver after one more
checkpoint, so that little is undone; one that was killed at once.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cutline.barrier.commit import GiveUp, Prepared
from cutline.barrier.cut import Claims, claims_of
from cutline.barrier.recovery import Confirmed, Restoring, Resume, RollBack
from cutline.errors import DriverConnected, Misuse, StorageError, StoreInUse, SystemHalted
from cutline.participant.driver import DRIVER
from cutline.participant.imaging import channels_of
from cutline.participant.leaving import RESTS
from cutline.participant.processes import process_alive
from cutline.participant.program import inherit
from cutline.participant.transport import Link
from cutline.storage import CheckpointRow, MemberImage
from cutline.storage.image import read_image

from .holding import Holding
from .roster import Seat
from .settings import OpenCheckpoint, Ticket
from .trigger import Wanted

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("ARRIVED", "Parting")

# The reason of a recovery that lets a driver in.
ARRIVED = "another program has connected"
# What one that does nothing adds to the figures of a checkpoint.
_QUIET = {"stall_ms": 0.0, "detect_ms": 0.0, "changed_bytes": 0, "written_bytes": 0, "state_bytes": 0}


class _Parked(NamedTuple):
    """What stands for a driver that has left: which checkpoint it left with, and its part of that cut."""

    checkpoint: int
    image: MemberImage
    claims: Claims
    facts: Mapping[str, Any]
    # Whether it left in order; else it was killed, and its log may have input behind its part of the cut.
    settled: bool


class _Coming(NamedTuple):
    """A program that was let in and has not greeted as the driver yet."""

    link: Link
    pid: int


class Parting:
    """See the module's head."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        self.seen_at = coordinator.now()
        # What another program needs to take the driver's place; empty where none can.
        self.spec: dict[str, Any] = {}
        self.parked: _Parked | None = None
        # The next recovery is one without the driver, who is gone.
        self.alone = False
        self.leaving: list[Ticket] = []
        self.coming: _Coming | None = None
        self.welcome: Ticket | None = None
        self.welcome_until = 0.0
        self.holding = Holding(coordinator)

    @property
    def linked(self) -> bool:
        """Whether the driver's process is connected."""
        seat = self.c.roster.get(DRIVER)
        return seat is not None and seat.link is not None

    def tick(self) -> None:
        """Stops a system whose driver does not come back."""
        c = self.c
        grace = c.settings.driver_grace
        if self.linked or self.parked is not None or grace is None:
            self.seen_at = c.now()
            if self.parked is not None and not self.linked:
                self.spec["detached"] = True
        elif self.spec.get("detached"):
            if self._is_gone() or c.now() - self.seen_at > grace:
                self._do_without()
        elif c.now() - self.seen_at > grace:
            c.stop(f"the driver has been gone for {grace:g} s")
        if self.welcome is not None and c.now() > self.welcome_until:
            self._let_in()
        self.holding.tick()

    def _is_gone(self) -> bool:
        seat = self.c.roster.get(DRIVER)
        return seat is not None and not process_alive(seat.pid, seat.started)

    def _do_without(self) -> None:
        """A system that has gone on without a program once does so again, from the newest checkpoint."""
        c = self.c
        if c.halted is None and not c.recoverer.gathering and c.recoverer.again_at is None:
            self.alone = True
            c.recoverer.recover("its program was killed")

    def leave(self, ticket: Ticket) -> None:
        """The next run of the program wants the system that its former run has left behind to stop."""
        c = self.c
        seat = c.roster.get(DRIVER)
        name = c.settings.system
        if self.linked:
            assert seat is not None
            raise StoreInUse(
                f"system {name!r} has a driver, process {seat.pid}; stop that program first", pid=seat.pid
            )
        if self.parked is not None and c.halted is None:
            raise StoreInUse(
                f"system {name!r} goes on without a program, which has left it (detach): "
                f"cutline.connect({name!r}) takes it up, `cutline stop --name {name}` ends it"
            )
        c.reply(ticket, {"checkpoint": c.committed})
        c.stop("the driver is gone, and its program was started again")

    # -- leaving ---------------------------------------------------------------------------

    def park(self, ticket: Ticket) -> None:
        """The driver rests and wants to be captured so.

        Raises:
            SystemHalted: no checkpoint will be taken any more.
            Misuse: the system ends with its driver's process.
        """
        c = self.c
        if c.halted is not None:
            raise SystemHalted(c.halted["text"])
        if c.settings.driver_grace is None:
            raise Misuse("a system on plain processes ends with its program; it cannot go on without it")
        self.leaving.append(ticket)
        c.trigger.want(Wanted(ticket, None))
        c.begin_due()

    def stay(self, ticket: Ticket) -> None:
        """The driver does not leave after all."""
        self.leaving.clear()
        self.still_here()
        self.c.reply(ticket, {"checkpoint": self.c.committed})

    def still_here(self) -> None:
        """A driver that was parked was not gone: it speaks for itself again."""
        if self.parked is not None:
            self.parked = None
            self.c.roster.seats[DRIVER].phase = "running"

    def decided(self, checkpoint: int, entry: OpenCheckpoint, committed: bool) -> None:
        """A checkpoint was decided: the driver may be parked by it, or let in after it."""
        c = self.c
        tickets = entry.start.tickets
        wanted = [ticket for ticket in self.leaving if any(ticket is other for other in tickets)]
        self.leaving = [ticket for ticket in self.leaving if all(ticket is not other for other in wanted)]
        if any(ticket is self.welcome for ticket in tickets):
            # Not here: others of this announcement have not heard of it yet.
            c.post(self._let_in)
        if not wanted or not committed:
            return
        if entry.driver is None or not entry.driver[1].get(RESTS):
            # A recovery came between its rest and this checkpoint.
            return
        assert entry.manifest is not None
        claims, facts = entry.driver
        image, quiet = entry.manifest.images[DRIVER], {**facts, **_QUIET, "state_bytes": facts["state_bytes"]}
        self.parked = _Parked(checkpoint, image, claims, quiet, True)
        seat = c.roster.seats[DRIVER]
        # Nobody listens there: it will dial.
        seat.phase, seat.address = "parked", ""
        c.post(lambda: self._answer_the_others(checkpoint))

    def _answer_the_others(self, checkpoint: int) -> None:
        """The driver hears of no other checkpoint that is under way."""
        for number, _full in self.c.commit.undecided:
            if number > checkpoint:
                self.answer(number)
            else:
                self.c.feed(GiveUp(number, "the driver has left"))

    def answer(self, checkpoint: int) -> None:
        """Says for a parked driver what it would say."""
        parked, seat = self.parked, self.c.roster.get(DRIVER)
        if parked is not None and seat is not None:
            report = {
                "image": parked.image.ref.to_doc(),
                "facts": {**parked.facts, "captured_at": self.c.now()},
            }
            self.c.feed(Prepared(seat.member, checkpoint, parked.claims, report))

    # -- recoveries ------------------------------------------------------------------------

    def stand_in(self, row: CheckpointRow, images: Mapping[str, MemberImage]) -> str:
        """Everybody goes back to this cut: with a driver that is here or comes, or with one that is parked.

        Returns why the cut will not do; empty if it will.
        """
        self.welcome = None
        if self.linked:
            self.parked, self.alone = None, False
        elif self.alone:
            try:
                image = read_image(self.c.store.blobs, images[DRIVER].ref)
            except StorageError as error:
                return str(error)
            # Restored and never heard of: it does nothing, so what it holds is true of every later cut.
            facts = {key: row.summary.get(key, {}).get(DRIVER, 0) for key in ("handled", "handlers")}
            facts |= {"input": row.summary["input"]} if "input" in row.summary else {}
            claims = claims_of(channels_of(image.sections))
            self.parked = _Parked(row.checkpoint, images[DRIVER], claims, {**_QUIET, **facts}, False)
            self.alone = False
        elif self.parked is not None and images.get(DRIVER) != self.parked.image:
            name = self.c.settings.system
            return (
                f"the program left this system with checkpoint {self.parked.checkpoint}, and the newest that "
                f"is whole is {row.checkpoint}: going back behind it would undo what that program has left "
                f"as done. Stop the system (`cutline stop --name {name}`) and run the program again: "
                "cutline.start resumes there"
            )
        return ""

    def confirm(self) -> list[RollBack | Resume]:
        """A parked driver holds the state of every cut since it left; what its confirmation brings about."""
        if self.parked is None:
            return []
        seat = self.c.roster.seats[DRIVER]
        seat.phase, seat.address = "parked", ""
        # All that it has spawned is in the cut that it left with; if it was killed, more may be in its log.
        self.c.nursery.spawns_known = self.parked.settled
        return self.c.recovery.handle(Confirmed(seat.member, self.c.epoch))

    # -- coming ----------------------------------------------------------------------------

    def connect(self, link: Link, doc: Mapping[str, Any], ticket: Ticket) -> None:
        """A program wants to be the driver; the reply is what it needs for that.

        Raises:
            DriverConnected: there is a driver, or one is expected.
            SystemHalted: the system halted.
            Misuse: the system ends with its driver's process.
        """
        c = self.c
        seat = c.roster.get(DRIVER)
        name = c.settings.system
        if not self.spec or c.settings.driver_grace is None:
            owner = f"process {seat.pid}" if seat is not None else "the process"
            raise Misuse(
                f"system {name!r} runs on plain processes and belongs to the program that started it "
                f"({owner}): no other can connect. On a Ray cluster that outlives programs it could"
            )
        if c.halted is not None:
            raise SystemHalted(
                f"{c.halted['text']} Nobody can connect any more: stop it (`cutline stop --name {name}`) and "
                "run its program again; cutline.start resumes from the newest checkpoint",
                participant=c.halted["participant"],
                checkpoint=c.halted["checkpoint"],
            )
        self._refuse_second(seat)
        assert seat is not None
        seat.launch = secrets.token_hex(6)
        self.coming = _Coming(link, int(doc["pid"]))
        c.recoverer.keep(seat)
        inherit(c.launcher.program, doc["path"], doc.get("renamed", {}), doc.get("id", ""))
        self.spec["program"] = c.launcher.program
        value = {"spec": self.spec, "launch": seat.launch, "lineage": c.lineage, "pid": os.getpid()}
        c.reply(ticket, {**value, "committed": c.committed, "damaged": c.damage})

    def _refuse_second(self, seat: Seat | None) -> None:
        name = self.c.settings.system
        if seat is None or (seat.phase != "parked" and not self.c.committed):
            raise DriverConnected(f"system {name!r} is still being started by its program; wait for it")
        if seat.link is not None:
            raise DriverConnected(
                f"system {name!r} has a driver: process {seat.pid}. A system has one at a time; let that "
                "program call system.detach(), or end it",
                pid=seat.pid,
            )
        coming = self.coming
        if coming is not None and coming.link in self.c.clients:
            raise DriverConnected(
                f"system {name!r} expects a driver: process {coming.pid} is about to connect", pid=coming.pid
            )
        if self.parked is None and process_alive(seat.pid, seat.started):
            raise DriverConnected(
                f"system {name!r} expects its driver back: process {seat.pid} has lost its connection and "
                "lives. End it first",
                pid=seat.pid,
            )

    def is_newcomer(self, seat: Seat, phase: str) -> bool:
        """Whether a greeting is that of a driver without a state, and nobody waits for it."""
        c = self.c
        if phase != "born" or seat.member.name != DRIVER or not (c.committed or c.origin):
            return False
        state = c.recovery.state
        return not isinstance(state, Restoring) or seat.member not in state.waiting

    def arrived(self, seat: Seat) -> None:
        """A driver without a state has greeted."""
        c = self.c
        self.coming = None
        if self.parked is None or not c.flowing:
            c.recoverer.recover(ARRIVED)
            return
        seat.phase = "parked"
        self.welcome = Ticket(None, 0)
        self.welcome_until = c.now() + c.settings.checkpoint_timeout
        c.trigger.want(Wanted(self.welcome, None))
        c.begin_due()

    def _let_in(self) -> None:
        c = self.c
        if self.welcome is not None and c.halted is None and c.ended is None:
            c.recoverer.recover(ARRIVED)
