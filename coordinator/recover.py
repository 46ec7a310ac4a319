"""Losses and recoveries: noticing that a process is gone, and bringing everybody back to one cut.

Lost means that the operating system says so: the process has ended. A link that breaks is no loss; the
participant dials again. Silence is *unresponsive*, shown by name, and only `lost_after` makes it a loss.

A recovery decides every begun id, raises the epoch, chooses the newest whole cut, starts the dead again,
tells the living to roll back, ends those who are not in the cut (their spawner spawns them again), and
lets data flow when all have confirmed (`barrier.recovery`).

A message that kills its process, or a handler that raises under the policies `retry` and `dead_letter`,
must not do so for ever: failures are counted per message in the catalog, outside every rollback.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutline.barrier import Member
from cutline.barrier.recovery import Begin, Confirmed, Restoring, Resume, RollBack
from cutline.errors import (
    BelowHorizon,
    CheckpointNotFound,
    Corrupt,
    Fenced,
    ParticipantFailed,
    SpawnFailed,
    StorageError,
    SystemHalted,
)
from cutline.participant.driver import DRIVER
from cutline.participant.flight import FlightRecord, read_flight
from cutline.participant.messages import pack_error
from cutline.storage import CheckpointRow, Manifest, MemberImage

from .fits import Fits
from .launch import Ended
from .roster import Seat, spawn_of
from .together import Together
from .undone import undone
from .watch import Watch

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("Recoverer", "RETRIES", "KILLS")

RETRIES = 3
KILLS = 5
# A message that is put aside may come under its number again with other contents, but not for ever.
DEAD_LETTER_TRIES = 10
GATHER_SECONDS = 10.0
AGAIN_AFTER = 1.0


class Recoverer:
    """See the module's head."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        self.watch, self.together = Watch(coordinator), Together(self)
        self.fits = Fits(coordinator)
        self.gathering = False
        self.gather_until = 0.0
        self.grace_until = 0.0
        self.began = 0.0
        self.manifest: Manifest | None = None
        self.images: dict[str, MemberImage] = {}
        # The catalog's rows of the participants, read once in a recovery that needs them.
        self.members: dict[str, tuple[int, dict[str, Any]]] | None = None
        self.row: CheckpointRow
        self.floor = 0
        self.causes: list[dict[str, Any]] = []
        self.gone: list[tuple[str, FlightRecord]] = []
        self.skips: list[list[Any]] = []
        # Sizes and documents are looked at first; what a restore then finds damaged is read to the end.
        self.deep = False
        # A recovery that the catalog did not let begin is tried again.
        self.again_at: float | None = None
        self.again_for = ""
        self.last_commit = -1

    # -- at start --------------------------------------------------------------------------

    def take_over(self) -> None:
        """A new coordinator of a running system: decide what was begun, wait for everybody's hello."""
        c = self.c
        c.nursery.spawns_known = False
        self._decide_leftovers("the coordinator was lost before the row")
        for name, (birth, doc) in c.departures.take_over(c.catalog.members(c.lineage)).items():
            seat = c.roster.seats[name] = Seat.from_doc(name, birth, doc)
            seat.phase = "lost"
            if name != DRIVER:
                c.launcher.adopt(seat)
        self.gathering = True
        self.gather_until = c.now() + GATHER_SECONDS

    def resume_newest(self) -> None:
        """A system that was not running: back to the newest whole cut, in a new epoch."""
        self._decide_leftovers("the system was not running any more")
        self.recover("resume")
        if self.c.halted is None and self.again_at is None:
            self.c.resumed = self.row.checkpoint

    def _decide_leftovers(self, reason: str) -> None:
        c = self.c
        for checkpoint in c.catalog.undecided(c.lineage):
            c.catalog.abort(c.lease, c.lineage, checkpoint, reason, c.wall())

    def gathered(self) -> None:
        """Everybody who was expected has said hello, or will not: go on, or recover."""
        c = self.c
        seats = [seat for seat in c.roster]
        epoch = c.catalog.epoch(c.lineage)
        missing = [seat for seat in seats if seat.phase == "lost"]
        out_of_step = [seat for seat in seats if seat.phase != "running" or seat.epoch != epoch]
        if missing and c.now() < self.gather_until and not any(self._is_dead(seat) for seat in missing):
            return
        if not c.committed and c.origin is None:
            self._begin_again(missing)
            return
        self.gathering = False
        if not missing and not out_of_step:
            c.notice("coordinator_back", pid=os.getpid())
            for seat in seats:
                c.service.goes_on(seat)
            return
        self.recover("the coordinator and others were lost")

    def _begin_again(self, missing: list[Seat]) -> None:
        """The older coordinator was lost before there was anything to come back to: the driver is alone."""
        c = self.c
        if missing:
            return
        self.gathering = False
        for seat in c.roster:
            c.service.begin(seat)

    def _is_dead(self, seat: Seat) -> bool:
        return seat.member.name != DRIVER and not self.c.launcher.alive(seat)

    # -- losses ----------------------------------------------------------------------------

    def ended(self, event: Ended) -> None:
        """A participant's process has ended."""
        c = self.c
        seat = c.roster.by_launch(event.launch)
        if seat is None or c.ended is not None:
            return
        was, pid, how = seat.phase, seat.pid, seat.overdue or event.how
        if seat.link is not None:
            # One that is out of reach and declared dead would go on under this name when it comes back.
            c.say(seat.link, "stop", reason="declared dead: the system goes on without this process")
            seat.link.close()
        seat.pid, seat.link, seat.launch, seat.beat = 0, None, "", {}
        if was == "departed":
            seat.phase = was
            c.departures.ended(seat)
            return
        if was == "starting" and self._died_at_birth(seat, how):
            return
        seat.phase = "lost"
        seat.deaths += 1
        self.causes.append({"role": "participant", "name": seat.member.name, "pid": pid, "how": how})
        record = self._mourn(seat)
        if self.gathering or c.halted is not None:
            return
        if record is not None and record.sender is not None and self._kills_again(seat, record, event):
            return
        if self._is_used_up(seat, event):
            self._halt(
                seat,
                f"{seat.member.name!r} was lost ({how}), and its max_restarts={seat.options['max_restarts']} "
                "are used up",
            )
            return
        if seat.deaths > c.settings.max_deaths and not self._committed_since(seat):
            self._halt(
                seat,
                f"{seat.member.name!r} was lost {seat.deaths} times ({how}) without a checkpoint between",
            )
            return
        self.together.lost(f"{seat.member.name} was lost ({how})")

    def _mourn(self, seat: Seat) -> FlightRecord | None:
        """What a process that has ended had done is still to be told."""
        record = read_flight(Path(seat.flight)) if seat.flight else None
        seat.flight = ""
        if record is not None:
            self.gone.append((seat.member.name, record))
        return record

    def _committed_since(self, seat: Seat) -> bool:
        if self.last_commit == self.c.committed:
            return False
        self.last_commit, seat.deaths = self.c.committed, 1
        return True

    def _is_used_up(self, seat: Seat, event: Ended) -> bool:
        """Whether the participant has been lost more often than its option `max_restarts` allows."""
        c = self.c
        most = seat.options.get("max_restarts")
        if most is None or most < 0:
            return False
        key = f"restart:{seat.member.name}"
        return c.catalog.count_failure(c.lease, c.lineage, key, event.launch) > int(most)

    def _died_at_birth(self, seat: Seat, how: str) -> bool:
        if seat.member not in self.c.nursery.births:
            return False
        name = seat.member.name
        text = f"participant {name!r} ended before it was ready ({how}); look at its output above"
        if seat.overdue:
            text = f"participant {name!r} did not come up: {seat.overdue}"
        self.c.nursery.died(seat, text)
        return True

    def _kills_again(self, seat: Seat, record: Any, event: Ended) -> bool:
        c = self.c
        key = f"kill:{seat.member.name}:{record.sender.name}:{record.sender.birth}:{record.sequence}"
        retries = seat.options.get("max_task_retries")
        most = KILLS if retries is None else retries + 1
        if retries == -1:
            return False
        count = c.catalog.count_failure(c.lease, c.lineage, key, event.launch)
        if count < most:
            return False
        if seat.options.get("on_error") == "dead_letter":
            # What it said is not known, only its place: the one in hand each time.
            self.skips.append([seat.member.name, *record.sender, record.sequence, None])
            return False
        self._halt(
            seat,
            f"message {record.sequence} from {record.sender.name!r} has ended the process of "
            f"{seat.member.name!r} {count} times ({event.how}); mend the handler, or give the participant "
            "on_error='dead_letter'",
        )
        return True

    def _halt(self, seat: Seat, text: str) -> None:
        error = ParticipantFailed(text, participant=seat.member.name)
        self.c.halt(text + ".", pack_error(error, participant=seat.member.name), seat.member.name)

    def skips_of(self, seat: Seat) -> list[list[Any]]:
        """Messages that this participant puts aside: sender, its birth, number, digest or None."""
        return [skip[1:] for skip in self.skips if skip[0] == seat.member.name]

    def handler_failed(self, seat: Seat, doc: dict[str, Any]) -> None:
        """A told handler raised: the participant's policy decides."""
        c = self.c
        policy, method = doc["policy"], doc["method"]
        if policy == "overloaded":
            c.overload.happened(seat, doc)
            return
        sender, birth, sequence = doc["key"]
        where = f"{seat.member.name}.{method} raised {doc['text']} (message {sequence} from {sender!r})"
        if policy == "halt":
            text = f"{where}. Nobody waits for the answer of a tell, so the system halted."
            c.halt(text, doc["error"], seat.member.name)
            return
        key = f"raise:{seat.member.name}:{sender}:{birth}:{sequence}"
        # It is told until it is heard, and stands still meanwhile: it fails once in an epoch.
        count = c.catalog.count_failure(c.lease, c.lineage, key, f"{doc['epoch']}")
        limit = int(seat.options.get("retries", RETRIES))
        if policy == "dead_letter" and count <= DEAD_LETTER_TRIES:
            self.skips.append([seat.member.name, sender, birth, sequence, doc["digest"]])
        elif policy == "dead_letter" or count > limit:
            c.halt(f"{where}, {count} times.", doc["error"], seat.member.name)
            return
        self.recover(where)

    # -- the recovery ----------------------------------------------------------------------

    def recover(self, reason: str) -> None:
        """Brings everybody to the newest whole cut, in a new epoch."""
        c = self.c
        if not c.recovery.restoring and self.again_at is None:
            self.began = c.now()
        self.gathering, self.again_at = False, None
        c.give_up_all(reason)
        damage: list[StorageError] = []
        try:
            epoch = c.catalog.bump_epoch(c.lease, c.lineage)
            row = c.store.recovery_cut(c.settings.system, c.lineage, deep=self.deep, damage=damage)
            self.manifest = c.store.read_manifest(row)
            c.departures.went_back(self.manifest.channels.get("departed", []))
        except Fenced as error:
            c.ended = f"fenced: {error}"
            return
        except (BelowHorizon, Corrupt, CheckpointNotFound) as error:
            c.halt(
                f"recovery ({reason}) is not possible: {error}", pack_error(error, participant="coordinator")
            )
            return
        except StorageError as error:
            c.notice("catalog_unreachable", text=str(error))
            self.again_at, self.again_for = c.now() + AGAIN_AFTER, reason
            return
        for fault in damage:
            c.damage.append(str(fault))
            c.notice("damaged", text=str(fault))
        kept = c.parting.stand_in(row, self.manifest.images)
        if kept:
            c.halt(
                f"recovery ({reason}) is not possible: {kept}.",
                pack_error(SystemHalted(kept), participant=""),
            )
            return
        c.nursery.recovering()
        c.effects.recovering()
        c.overload.pending = None
        self.reason, self.row = reason, row
        self.floor = max(c.newest, row.checkpoint, max((r.checkpoint for r in c._rows()), default=0))
        c.newest = self.floor
        self.images = dict(self.manifest.images)
        self.members = None
        for seat in c.roster:
            image = self.images.get(seat.member.name)
            if image is None or image.birth != seat.member.birth:
                self._dismiss(seat)
        roster = tuple(Member(name, image.birth) for name, image in sorted(self.images.items()))
        self.grace_until = c.now() + c.settings.rollback_grace
        for action in c.recovery.handle(Begin(epoch, row.checkpoint, roster)):
            if isinstance(action, RollBack):
                self._bring_back(action.member)
        self._go_on(c.parting.confirm())

    def _dismiss(self, seat: Seat) -> None:
        """Somebody born after the cut: ended; the spawner's record brings a new one."""
        c = self.c
        c.nursery.births.pop(seat.member, None)
        c.say(seat.link, "stop", reason="the system went back to a checkpoint before its birth")
        del c.roster.seats[seat.member.name]
        c.catalog.remove_member(c.lease, c.lineage, seat.member.name)
        c.launcher.end(seat)
        self._mourn(seat)

    def _bring_back(self, member: Member) -> None:
        c = self.c
        seat = c.roster.get(member.name)
        if seat is None:
            seat = c.roster.seats[member.name] = self._seat_of(member)
        if seat.link is not None:
            # Whatever it is doing, even if it was heard of just now: it lives, and has to come along.
            self.order_rollback(seat)
        elif member.name != DRIVER and not c.launcher.alive(seat):
            self._launch(seat)

    def _seat_of(self, member: Member) -> Seat:
        # In a fork, or for somebody whose name another one has by now, the row is of no use.
        about = self.manifest.channels["members"][member.name] if self.manifest is not None else {}
        seat = Seat(member, about["class_name"], about["options"], phase="lost", spawn=spawn_of(about))
        if self.members is None:
            self.members = self.c.catalog.members(self.c.lineage)
        known = self.members.get(member.name)
        if known is not None and known[0] == member.birth:
            seat.flight, seat.node = known[1]["flight"], known[1].get("node", "")
        return seat

    def _launch(self, seat: Seat) -> None:
        c = self.c
        ref = self.images[seat.member.name].ref
        self._mourn(seat)
        try:
            c.launcher.start(
                seat,
                "restore",
                c.now(),
                image=ref.to_doc(),
                epoch=c.epoch,
                checkpoint=self.row.checkpoint,
                floor=self.floor,
            )
        except SpawnFailed as error:
            c.halt(
                f"{seat.member.name!r} cannot be started again: {error}", pack_error(error, participant="")
            )

    def order_rollback(self, seat: Seat) -> None:
        """Tells a living participant to take the cut's state."""
        c = self.c
        if seat.member.name not in self.images:
            c.say(seat.link, "stop", reason="not in the checkpoint that the system went back to")
            return
        ref = self.images[seat.member.name].ref
        seat.phase = "restoring"
        c.say(
            seat.link,
            "roll_back",
            image=ref.to_doc(),
            checkpoint=self.row.checkpoint,
            floor=self.floor,
        )

    def restored(self, seat: Seat, doc: dict[str, Any]) -> None:
        """A participant holds the cut's state and waits."""
        seat.phase = "restored"
        # Of an attempt that another one is about to overtake nothing counts.
        if self.again_at is None and not self.fits.halts(seat, doc.get("fit")):
            self._go_on(self.c.recovery.handle(Confirmed(seat.member, doc["epoch"])))

    def _go_on(self, actions: Sequence[RollBack | Resume]) -> None:
        for action in actions:
            if isinstance(action, Resume):
                self._resume(action)

    def restore_failed(self, seat: Seat, doc: dict[str, Any]) -> None:
        """The cut's state does not load: damaged, so an older cut; or the program does not fit, so nobody."""
        if doc["at"] != self.c.epoch:
            # Of an attempt that another one has overtaken.
            return
        if doc["reason"].startswith("Corrupt") and not self.deep:
            self.deep = True
            self.recover(doc["reason"])
            return
        about = f"participant {seat.member.name!r} cannot take checkpoint {self.row.checkpoint}"
        text = f"{about}: {doc['reason']}"
        error = doc.get("error") or pack_error(ParticipantFailed(text), participant=seat.member.name)
        self.c.halt(text, error, seat.member.name)

    def _resume(self, action: Resume) -> None:
        c = self.c
        # Before anything happens in it: from now on the system goes on there.
        c.catalog.opened(c.lease, c.lineage)
        c.committed, c.parent = max(c.committed, action.checkpoint), self.row.place
        members = dict.fromkeys(action.roster)
        seats = [seat for seat in c.roster if seat.member in members]
        classes = {seat.member.name: seat.class_name for seat in seats}
        # First, because their recorders keep what was undone only until data flows.
        self._tell_of(action.checkpoint)
        for seat in seats:
            seat.phase = "parked" if seat.phase == "parked" else "running"
            self.keep(seat)
            roster = classes if seat.member.name == DRIVER else {}
            skips, left = self.skips_of(seat), c.departures.all_for(seat.member)
            c.say(seat.link, "resume", checkpoint=action.checkpoint, roster=roster, skips=skips, left=left)
        c.imaged = set(action.roster)
        c.trigger.last_begin = c.now()
        c.mover.resumed()

    def keep(self, seat: Seat) -> None:
        """The catalog learns where a participant is."""
        c = self.c
        c.catalog.put_member(c.lease, c.lineage, seat.member.name, seat.member.birth, seat.to_doc())

    def _tell_of(self, checkpoint: int) -> None:
        c = self.c
        messages, reruns = undone(self.row, self.gone, c.roster)
        lost = [cause["name"] for cause in self.causes]
        c.notice(
            "recovered",
            checkpoint=checkpoint,
            age=c.wall() - (self.row.decided_at or c.wall()),
            causes=self.causes,
            reason=self.reason,
            lost=lost,
            rolled_back_messages=messages,
            handlers_rerun=reruns,
            in_flight=self.row.summary.get("in_flight_messages", 0),
            recovered_ms=(c.now() - self.began) * 1000,
        )
        self.causes, self.gone, self.deep = [], [], False

    # -- the clock -------------------------------------------------------------------------

    def tick(self) -> None:
        """What time brings: gathering ends, a rollback's grace ends, the unresponsive become lost."""
        c = self.c
        if self.gathering:
            self.gathered()
            return
        if self.again_at is None:
            c.committer.ask_again()
            if c.recovery.restoring and c.now() > self.grace_until:
                self.grace_until = c.now() + c.settings.rollback_grace
                self._end_the_missing()
            self.watch.tick()
        if self.again_at is not None and c.now() >= self.again_at and c.halted is None:
            self.recover(self.again_for)

    def _end_the_missing(self) -> None:
        """Who has not come to the cut in time: in a handler without end, stopped, or its end was missed."""
        c = self.c
        state = c.recovery.state
        if not isinstance(state, Restoring):
            return
        for member in state.waiting:
            seat = c.roster.get(member.name)
            if seat is None or member.name == DRIVER or seat.phase == "starting":
                continue
            if c.launcher.alive(seat):
                c.launcher.end(seat)
            elif seat.launch:
                self.ended(Ended(seat.launch, "its process has ended"))
                return
            else:
                self.recover(f"{member.name} is gone")
                return
