"""Subtle bugs to plant in the whole system: what the simulator is worth is what it catches.

Each is a small patch that a run without faults does not notice. Those of barrier/ are the ones that its own
random model is tried with (`tests/barrier/planted.py`); where the check before the commit would refuse the
cut, that check is planted away as well, so that the wrong cut itself has to be seen. The others are in the
shells and in storage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cutline.barrier import commit
from cutline.barrier.channel import Incoming
from cutline.barrier.commit import GlobalCommit
from cutline.barrier.endpoint import Endpoint
from cutline.barrier.messages import InPart, Member, Stamp
from cutline.coordinator.committer import Committer
from cutline.coordinator.recover import Recoverer
from cutline.errors import StorageError, StoreFull
from cutline.participant import desk_image, failures, imaging
from cutline.participant.async_call import AsyncCall
from cutline.participant.capture import Capturer
from cutline.participant.desk import Desk
from cutline.participant.ingress import IngressLog
from cutline.participant.peers import Peers
from cutline.participant.persist import write
from cutline.participant.runner import Runner
from cutline.participant.shutter import Shutter
from cutline.storage import Store, collect, image
from cutline.storage.blobs import parts_of
from cutline.storage.directory import DirectoryBlobs
from cutline.storage.leases import LeaseTable
from cutline.storage.memory import MemoryBlobs
from cutline.storage.sqlite import SqliteCatalog
from tests.barrier.planted import PLANTED as IN_BARRIER
from tests.barrier.planted import UNPROVED, check_off

from .disk import SimulatedDisk
from .hosts import Slow
from .program import Log

__all__ = ("PLANTED",)

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]

# Of barrier/'s, those that a whole system can show. The others are about what only its model does.
_FROM_BARRIER = (
    "the whole mailbox is recorded",
    "released is not withheld",
    "a channel that opens after the capture does not withhold",
    "a newborn releases as usual",
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
    "data flows before everybody is restored",
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


PLANTED: dict[str, Plant] = {name: _of_barrier(name) for name in _FROM_BARRIER if name in IN_BARRIER}


def planted(name: str) -> Callable[[Plant], Plant]:
    """Registers a patch."""

    def register(function: Plant) -> Plant:
        PLANTED[name] = function
        return function

    return register


# -- epochs and links ------------------------------------------------------------------------------------


@planted("a newer epoch is accepted")
def _newer_epoch(patch: Patch) -> None:
    def fresh(self: Endpoint, stamp: Stamp) -> bool:
        return stamp.run == self.run and stamp.epoch >= self.epoch and stamp.receiver == self.me

    patch.setattr(Endpoint, "_fresh", fresh)
    # The links of the older epoch would end before the packet comes.
    _links_survive(patch)


@planted("links outlive their epoch")
def _links_survive(patch: Patch) -> None:
    def new_epoch(self: Peers, epoch: int) -> None:
        self.addresses.clear()
        self.retries.clear()
        self.acks.clear()

    patch.setattr(Peers, "new_epoch", new_epoch)


@planted("one that is first heard of between two attempts of a recovery is left behind")
def _left_behind(patch: Patch) -> None:
    real = Recoverer._bring_back

    def bring_back(self: Recoverer, member: Member) -> None:
        seat = self.c.roster.get(member.name)
        if seat is None or seat.link is None or seat.phase in ("running", "restoring", "restored"):
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
    real = image._piece_table

    def piece_table(writer: Any, pieces: Sequence[Any], base: Any, key: str) -> Any:
        for piece in pieces:
            if piece.content is None:
                base.pieces[piece.name] = piece.digest
        return real(writer, pieces, base, key)

    patch.setattr(image, "_piece_table", piece_table)


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


# -- input -----------------------------------------------------------------------------------------------


@planted("input is delivered before it is durable")
def _input_early(patch: Patch) -> None:
    real, after = IngressLog.append, IngressLog.after

    def flush(self: IngressLog) -> None:
        late, self.late = getattr(self, "late", []), []  # type: ignore[attr-defined]
        if late:
            self.last -= len(late)
            real(self, late)

    def append(self: IngressLog, records: Sequence[Any]) -> int:
        flush(self)
        self.late = list(records)  # type: ignore[attr-defined]
        self.last += len(records)
        return self.last

    def read(self: IngressLog, index: int) -> Any:
        flush(self)
        return after(self, index)

    patch.setattr(IngressLog, "append", append)
    patch.setattr(IngressLog, "after", read)


@planted("a recovery does not replay the log")
def _no_replay(patch: Patch) -> None:
    patch.setattr(IngressLog, "after", lambda self, index: [])


@planted("a replay begins one record late")
def _replay_late(patch: Patch) -> None:
    real = IngressLog.after
    patch.setattr(IngressLog, "after", lambda self, index: real(self, index + 1))


@planted("a replay begins one record early")
def _replay_early(patch: Patch) -> None:
    real = IngressLog.after
    patch.setattr(IngressLog, "after", lambda self, index: real(self, max(0, index - 1)))


@planted("a full log passes for a written one")
def _full_log(patch: Patch) -> None:
    real = Log.append

    def append(self: Log, records: Any) -> int:
        try:
            return real(self, records)
        except StoreFull:
            self.last += len(records)
            return self.last

    patch.setattr(Log, "append", append)


# -- storage ---------------------------------------------------------------------------------------------


@planted("the collector goes by age")
def _by_age(patch: Patch) -> None:
    def dead(state: Any, listed: Sequence[str]) -> list[str]:
        living: set[str] = set()
        newest = 0
        for row in state.rows:
            newest = max(newest, row.checkpoint)
            if row.fate == "committed" and not row.condemned:
                living.update(row.blobs)
        # What is some checkpoints old, and in no cut, is nobody's.
        return sorted(
            key
            for key in listed
            if (parts := parts_of(key)) is not None
            and parts.checkpoint < newest
            and collect._whole_name(key) not in living
            and not key.rpartition("/")[2].startswith("manifest")
        )

    patch.setattr(collect, "_dead", dead)


@planted("a folder is synced into its parent once per number")
def _one_number(patch: Patch) -> None:
    def step(self: DirectoryBlobs, path: tuple[str, ...], folder: int, make: bool) -> int:
        if make:
            self._disk.make_folder(path[-1], folder)
        below = self._disk.open_folder(path[-1], folder)
        if make:
            identity: Any = self._disk.identity(below)
            if identity not in self._synced:
                self._disk.sync(folder)
                self._synced.add(identity)
        return below

    patch.setattr(DirectoryBlobs, "_step", step)


@planted("a blob is named before it is synced")
def _unsynced(patch: Patch) -> None:
    real = SimulatedDisk.sync

    def sync(self: SimulatedDisk, fd: int) -> None:
        node = self._open[fd]
        if hasattr(node, "names"):
            real(self, fd)

    patch.setattr(SimulatedDisk, "sync", sync)


@planted("a delta may build on what nobody holds")
def _borrowed(patch: Patch) -> None:
    patch.setattr(SqliteCatalog, "_check_borrowed", lambda self, connection, row, blobs: None)
    _by_age(patch)


# -- the shell -------------------------------------------------------------------------------------------


@planted("a tainted participant goes on")
def _taint_forgotten(patch: Patch) -> None:
    real = failures.report

    def report(runner: Runner, *facts: Any) -> None:
        real(runner, *facts)
        runner.tainted = False

    patch.setattr(failures, "report", report)
