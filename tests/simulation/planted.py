"""Subtle bugs to plant in the whole system: what the simulator is worth is what it catches.

Each is a small patch that a run without faults does not notice. Those of barrier/ are the ones that its own
random model is tried with (`tests/barrier/planted.py`); where the check before the commit would refuse the
cut, that check is planted away as well, so that the wrong cut itself has to be seen. The others are in the
shells; those of input and storage are in `planted_storage`, which completes the table.

Some mistakes are harmless as long as another guard stands. That guard is then planted away too, and as this
alone would be noticed, only the *sign* of the mistake itself counts: `SIGNS` has a pattern for the violation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cutline.barrier import commit
from cutline.barrier.actions import Capture
from cutline.barrier.channel import Incoming
from cutline.barrier.commit import GlobalCommit
from cutline.barrier.endpoint import Endpoint
from cutline.barrier.messages import ChannelTable, InPart, Member, Stamp
from cutline.barrier.recovery import Confirmed, Recovery, Restoring, Resume
from cutline.coordinator.committer import Committer
from cutline.coordinator.recover import Recoverer
from cutline.errors import StorageError
from cutline.participant import desk_image, imaging
from cutline.participant.async_call import AsyncCall
from cutline.participant.capture import Capturer
from cutline.participant.desk import Desk
from cutline.participant.peers import Peers
from cutline.participant.persist import write
from cutline.participant.shutter import Shutter
from cutline.storage import Store
from cutline.storage.folding import Mixed
from cutline.storage.leases import LeaseTable
from cutline.storage.memory import MemoryBlobs
from cutline.storage.sqlite import SqliteCatalog
from tests.barrier.planted_members import PLANTED as IN_BARRIER
from tests.barrier.planted_members import UNPROVED, check_off

from .hosts import Slow

__all__ = ("PLANTED", "SIGNS", "Patch", "planted")

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]

# Of barrier/'s, those that a whole system can show. The others are about what only its model does.
_FROM_BARRIER = (
    "the whole mailbox is recorded",
    "released is not withheld",
    "a channel that opens after the capture does not withhold",
    "a channel that opens after the capture carries no mark",
    "id n+1 is captured without n",
    "a frame spans a capture",
    "what is not yet in a frame is forgotten by the capture",
    "a mark is renewed at retransmission",
    "an older epoch is accepted",
    "the reorder buffer is recorded",
    "the reorder buffer is acknowledged",
    "credit is an increment",
    "a link that opens again goes on where the old one stopped",
    "a late marker of a decided id is honoured",
    "a capture inside a frame counts the frame as not handled",
    "a spawn is not in the outbox",
    "a newborn is used before all that was begun before its birth is captured",
    "a channel is joined by name instead of incarnation",
    "who leaves does not wait until what it sent is released",
)


def _of_barrier(name: str) -> Plant:
    def plant(patch: Patch) -> None:
        IN_BARRIER[name](patch)
        if name in UNPROVED:
            check_off(patch)

    return plant


PLANTED: dict[str, Plant] = {name: _of_barrier(name) for name in _FROM_BARRIER}
SIGNS: dict[str, str] = {}


def planted(name: str, sign: str = "") -> Callable[[Plant], Plant]:
    """Registers a patch. `sign`: a pattern that a violation must fit to count."""

    def register(function: Plant) -> Plant:
        PLANTED[name] = function
        if sign:
            SIGNS[name] = sign
        return function

    return register


# -- births and recoveries -------------------------------------------------------------------------------


@planted("a newborn releases as usual", sign="which is outside the cut")
def _newborn_releases(patch: Patch) -> None:
    # Nobody would speak to it before having captured what was begun before its birth.
    for name in ("a newborn releases as usual", "a newborn does not make its receivers capture"):
        IN_BARRIER[name](patch)
    check_off(patch)


@planted("data flows before everybody is restored")
def _data_early(patch: Patch) -> None:
    real = Recovery.handle

    def handle(self: Recovery, event: Any) -> list[Any]:
        actions: list[Any] = real(self, event)
        state = self.state
        if isinstance(event, Confirmed) and isinstance(state, Restoring) and event.epoch == state.epoch:
            actions.append(Resume(state.epoch, state.checkpoint, (event.member,)))
        return actions

    patch.setattr(Recovery, "handle", handle)


# -- epochs and links ------------------------------------------------------------------------------------


@planted("a newer epoch is accepted", sign="of another epoch")
def _newer_epoch(patch: Patch) -> None:
    def fresh(self: Endpoint, stamp: Stamp) -> bool:
        return stamp.run == self.run and stamp.epoch >= self.epoch and stamp.receiver == self.me

    patch.setattr(Endpoint, "_fresh", fresh)
    real = Peers.up

    def up(self: Peers, event: Any, endpoint: Any) -> Any:
        # Whoever is of another epoch would be hung up on.
        epoch, self.epoch = self.epoch, -1
        try:
            return real(self, event, endpoint)
        finally:
            self.epoch = epoch

    patch.setattr(Peers, "up", up)


@planted("links outlive their epoch")
def _links_survive(patch: Patch) -> None:
    def new_epoch(self: Peers, epoch: int) -> None:
        self.addresses.clear()
        self.retries.clear()
        self.acks.clear()

    patch.setattr(Peers, "new_epoch", new_epoch)


@planted("one that has confirmed an older attempt of a recovery is left behind")
def _left_behind(patch: Patch) -> None:
    real = Recoverer._bring_back

    def bring_back(self: Recoverer, member: Member) -> None:
        seat = self.c.roster.get(member.name)
        if seat is None or seat.link is None or seat.phase != "restored":
            real(self, member)

    patch.setattr(Recoverer, "_bring_back", bring_back)


# -- rows and leases -------------------------------------------------------------------------------------


@planted("a commit does not compare the token")
def _no_token(patch: Patch) -> None:
    patch.setattr(LeaseTable, "fence", lambda self, connection, lease: None)


@planted("a checkpoint that times out with one missing commits all the same")
def _one_missing(patch: Patch) -> None:
    real = GlobalCommit.handle

    def handle(self: GlobalCommit, event: Any) -> Any:
        state = self._open.get(event.checkpoint) if isinstance(event, commit.GiveUp) else None
        if isinstance(state, commit._Collecting) and len(state.reports) == len(state.roster) - 1 > 0:
            self._open[event.checkpoint] = commit._Writing(state.roster, state.full, ())
            return [commit.WriteManifest(event.checkpoint, state.claims, state.reports, {})]
        return real(self, event)

    patch.setattr(GlobalCommit, "handle", handle)


@planted("what was prepared is not checked", sign="^cut ")
def _unchecked(patch: Patch) -> None:
    """One image in five has lost what was sent last. The check would refuse such cuts, and only those."""
    real = Endpoint._at_boundary

    def at_boundary(self: Endpoint, event: Any) -> list[Any]:
        actions = real(self, event)
        return [
            action._replace(channels=_without_last(action.channels))
            if isinstance(action, Capture) and action.checkpoint % 5 == 3
            else action
            for action in actions
        ]

    patch.setattr(Endpoint, "_at_boundary", at_boundary)
    check_off(patch)


def _without_last(channels: ChannelTable) -> ChannelTable:
    outgoing = {peer: part._replace(frames=part.frames[:-1]) for peer, part in channels.outgoing.items()}
    return channels._replace(outgoing=outgoing)


@planted("a fate is announced before its row")
def _announced_early(patch: Patch) -> None:
    real = Committer.decide

    def decide(self: Committer, action: Any) -> Any:
        for seat in self.c.roster:
            self.c.say(seat.link, "settled", checkpoint=action.checkpoint, committed=action.commit)
        return real(self, action)

    patch.setattr(Committer, "decide", decide)


@planted("a fate is decided twice")
def _decided_twice(patch: Patch) -> None:
    def undecided_row(self: SqliteCatalog, connection: Any, lease: Any, *place: Any) -> Any:
        self._leases.fence(connection, lease)
        return self._existing(connection, *place[:2])

    def undecidable(self: Committer, action: Any, error: StorageError) -> Any:
        # Without reading the row back: what has no answer did not happen.
        c = self.c
        try:
            c.catalog.abort(c.lease, c.lineage, action.checkpoint, str(error), c.wall())
        except StorageError:
            self.undecidable[action.checkpoint] = action
            return None
        return commit.RowDecided(action.checkpoint, False, str(error))

    patch.setattr(SqliteCatalog, "_undecided_row", undecided_row)
    patch.setattr(Store, "_row_after", lambda self, manifest: None)
    patch.setattr(Committer, "_undecidable", undecidable)


@planted("a lost `committed` is taken for an abort")
def _taken_for_abort(patch: Patch) -> None:
    def initiated(self: Endpoint, event: Any) -> list[Any]:
        if event.epoch != self.epoch:
            return []
        actions: list[Any] = []
        for checkpoint in self.snapshot.missing(event.undecided, event.newest):
            actions += self._settle(checkpoint, False)
        self.snapshot.learn(event.undecided)
        self.snapshot.raise_floor(min([event.newest + 1, *(n for n, _ in event.undecided)]) - 1)
        return actions

    patch.setattr(Endpoint, "_initiated", initiated)


# -- images ----------------------------------------------------------------------------------------------


class _Scratch(MemoryBlobs):
    """Writes to nowhere, reads what is there."""

    def __init__(self, below: Any) -> None:
        super().__init__()
        self.read, self.read_into, self.size = below.read, below.read_into, below.size  # type: ignore


@planted("prepared before the image is durable")
def _prepared_early(patch: Patch) -> None:
    real = Slow.submit

    def submit(self: Slow, job: Any) -> None:
        outcome = write(_Scratch(self._blobs), job)
        self._process.runner.post(outcome)
        self._process.wake()
        real(self, job)

    patch.setattr(Slow, "submit", submit)
    patch.setattr(Slow, "_tell", lambda self, outcome: None)


@planted("an abort drops what had changed")
def _dirt_dropped(patch: Patch) -> None:
    real = Capturer.capture

    def capture(self: Capturer, instance: object, *, number: int, against: int | None) -> Any:
        if against is not None and against in self._tables:
            # What the newest capture holds passes for written, whatever became of it.
            self._tables[against] = self._latest
        return real(self, instance, number=number, against=against)

    patch.setattr(Capturer, "capture", capture)
    _unchecked_base(patch)


def _unchecked_base(patch: Patch) -> None:
    """The writer of images does not look whether the parent holds what is left out."""
    patch.setattr(Mixed, "_check", lambda self: None)


@planted("a delta builds on an aborted capture")
def _aborted_base(patch: Patch) -> None:
    real = Shutter.settle

    def settle(self: Shutter, action: Any) -> None:
        if action.committed:
            real(self, action)
            return
        assert self.runner.endpoint is not None
        if action.checkpoint in self.refs:
            self.runner.endpoint.snapshot.base = action.checkpoint
        self.runner.settled(action.checkpoint, False)

    patch.setattr(Shutter, "settle", settle)
    patch.setattr(SqliteCatalog, "_check_borrowed", lambda self, connection, row, blobs: None)


@planted("messages come twice after a restore")
def _twice_after_restore(patch: Patch) -> None:
    real = Incoming.restored.__func__  # type: ignore[attr-defined]

    def restored(cls: type[Incoming], peer: Member, part: InPart, window: int) -> Incoming:
        end: Incoming = real(cls, peer, part, window)
        if part.frames:
            # What lies in the mailbox passes for not received.
            end.received, end.digest = part.frames[0].first - 1, 0
        return end

    patch.setattr(Incoming, "restored", classmethod(restored))
    patch.setattr(Incoming, "_append", _append_unchecked)


def _append_unchecked(self: Incoming, frame: Any) -> None:
    self.received, self.digest = frame.last, frame.digest
    self.frames.append(frame)
    self.queued_bytes += len(frame.body)


@planted("a restore forgets what waits for a name")
def _names_forgotten(patch: Patch) -> None:
    real = imaging.revive

    def revive(*args: Any) -> Any:
        return real(*args)._replace(unresolved={})

    patch.setattr("cutline.participant.runner.revive", revive)


@planted("an answer is applied twice to a suspended call")
def _answer_twice(patch: Patch) -> None:
    real = AsyncCall.from_doc.__func__  # type: ignore[attr-defined]

    def from_doc(cls: type[AsyncCall], doc: list[Any], participant: str) -> AsyncCall:
        call: AsyncCall = real(cls, doc, participant)
        if call.journal:
            call.journal.append(call.journal[-1])
        return call

    patch.setattr(AsyncCall, "from_doc", classmethod(from_doc))


@planted("a restored call forgets its newest answer")
def _answer_lost(patch: Patch) -> None:
    real = AsyncCall.from_doc.__func__  # type: ignore[attr-defined]

    def from_doc(cls: type[AsyncCall], doc: list[Any], participant: str) -> AsyncCall:
        call: AsyncCall = real(cls, doc, participant)
        del call.journal[-1:]
        return call

    patch.setattr(AsyncCall, "from_doc", classmethod(from_doc))


@planted("suspended calls are not part of the image")
def _calls_forgotten(patch: Patch) -> None:
    real = desk_image.desk_to_doc

    def desk_to_doc(desk: Desk) -> Any:
        held, desk.calls = desk.calls, {}
        try:
            return real(desk)
        finally:
            desk.calls = held

    patch.setattr("cutline.participant.imaging.desk_to_doc", desk_to_doc)
