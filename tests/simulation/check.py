"""What must hold of every schedule, seen from outside: books, rows, packets, buffers.

None of this asks the protocol's own checks. A cut is judged by what its images hold, read from the blobs as a
restore would: for every channel, what one end's book says was sent is what the other's says was heard,
followed by the messages that lie in either image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from cutline.barrier import ChannelTable, Member
from cutline.barrier.messages import InPart, OutPart
from cutline.barrier.wire import table_from_docs
from cutline.errors import CheckpointNotFound, CutlineError
from cutline.participant.classes import Classes
from cutline.participant.control import unpack_control
from cutline.participant.handle import Handle, Ref
from cutline.participant.messages import read_frame
from cutline.participant.restore import restore
from cutline.storage import CheckpointRow, Lease
from cutline.storage.blobs import parts_of
from cutline.storage.image import ImageRef, read_header, read_image

from .actors import BOOKED, Node
from .world import Violation

if TYPE_CHECKING:
    from .hosts import Participant
    from .town import Town

__all__ = ("Checker",)

MAILBOX_SLACK = 8 * 1024 * 1024


class _Departure(NamedTuple):
    """The books of one that has left, the epoch, and the newest checkpoint it knew of."""

    epoch: int
    newest: int
    sent: dict[str, list[int]]


class Checker:
    """Watches one town."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.writers: dict[tuple[str, int], int] = {}
        self.committed: dict[tuple[str, int], CheckpointRow] = {}
        self.in_flight: list[int] = []
        # What those that have departed had sent, by the name in the books; the last departure counts.
        self.departures: dict[str, _Departure] = {}
        # To which cut everybody went back, and in which epoch they went on.
        self.went_back: dict[int, int] = {}
        self.newest_token = 0
        # Whether rows, packets and cuts are looked at, and not only what comes of them.
        self.watching = True
        # Epochs in which data flowed again.
        self.resumed: set[tuple[str, int]] = set()

    # -- rows ------------------------------------------------------------------------------

    def row_written(self, lease: Lease, lineage: str, checkpoint: int) -> None:
        """A coordinator has tried to commit; called when the catalog has answered, or failed to."""
        town = self.town
        row = next(
            (
                r
                for r in town.catalog.checkpoints(lease.system, lineage=lineage)
                if r.checkpoint == checkpoint
            ),
            None,
        )
        if row is None or (lineage, checkpoint) in self.committed:
            return
        if lease.token != self.newest_token:
            raise Violation(f"lease {lease.token} committed {checkpoint}; the newest is {self.newest_token}")
        manifest = town.store().read_manifest(row)
        writer = self.writers.setdefault((lineage, manifest.epoch), lease.token)
        epoch = town.catalog.epoch(lineage)
        if epoch != manifest.epoch:
            raise Violation(f"checkpoint {checkpoint} of epoch {manifest.epoch} committed in epoch {epoch}")
        if writer != lease.token and manifest.epoch:
            town.world.hits["an epoch with two coordinators, one after the other"] += 1
        self.committed[lineage, checkpoint] = row
        if not self.watching:
            return
        town.world.hits["cut committed"] += 1
        town.world.note("committed", checkpoint)
        self.cut(row)

    def cut(self, row: CheckpointRow) -> None:
        """One committed cut."""
        town = self.town
        manifest = town.store().read_manifest(row)
        nodes: dict[str, Node] = {}
        tables: dict[str, ChannelTable] = {}
        waiting: dict[str, Mapping[str, list[bytes]]] = {}
        births: dict[str, int] = {}
        for name, member in manifest.images.items():
            self._parents(row, member.ref)
            image = read_image(town.store().blobs, member.ref)
            if image.header["birth"] != member.birth or image.header["checkpoint"] != row.checkpoint:
                raise Violation(f"cut {row.checkpoint}: the image of {name} is that of {image.header}")
            births[name] = member.birth
            section = image.sections
            tables[name] = table_from_docs(_doc(section["queued_in"]), _doc(section["unreleased_out"]))
            waiting[name] = _doc(section["unresolved"])
            instance = restore(
                image.pieces,
                image.regions,
                participant=name,
                classes=_CLASSES,
                live=_LIVE,
                header=image.header,
            )
            if isinstance(instance, Node):
                nodes[name] = instance
        departed = {Member(doc["name"], birth) for birth, doc in manifest.channels["departed"]}
        self._outside(row, tables, births, departed)
        flying = money = 0
        for sender in tables:
            # A newborn that is in no cut yet may have been sent something: it is all in the sender's image.
            named = [peer.name for peer in tables[sender].outgoing]
            for receiver in dict.fromkeys([*tables, *named, *waiting[sender]]):
                state, late = self._state_of(row, sender, receiver, births, tables, waiting)
                flying += len(state) + len(late)
                if sender in nodes and receiver in nodes:
                    self._channel(row, nodes[sender], nodes[receiver], state, late)
                money += sum(message[3][2] for message in (*state, *late) if message[2] == "transfer")
        self.in_flight.append(flying)
        if flying:
            town.world.hits["cut with messages in flight"] += 1
        money += sum(node.balance for node in nodes.values())
        if money != sum(town.program.balances.get(name, 0) for name in nodes):
            raise Violation(f"cut {row.checkpoint}: {money} in all accounts of {sorted(nodes)} and in flight")

    def _outside(
        self,
        row: CheckpointRow,
        tables: Mapping[str, ChannelTable],
        births: Mapping[str, int],
        departed: set[Member],
    ) -> None:
        """Of what was sent to somebody whom the cut does not have, all is in the sender's image; and nothing
        was heard from such a one.
        """
        for sender, table in tables.items():
            for peer, part in table.incoming.items():
                if part.upto and births.get(peer.name) != peer.birth and peer not in departed:
                    raise Violation(
                        f"cut {row.checkpoint}: {sender} has heard {part.upto} messages from {peer.name}, "
                        f"which is outside the cut"
                    )
            for peer, out in table.outgoing.items():
                inside = births.get(peer.name) == peer.birth or peer in departed
                if out.released and not inside:
                    raise Violation(
                        f"cut {row.checkpoint}: {sender} has forgotten {out.released} messages to "
                        f"{peer.name}, which is outside the cut"
                    )

    def _parents(self, row: CheckpointRow, ref: ImageRef) -> None:
        blobs = self.town.store().blobs
        read_header(blobs, ref)
        for key in ref.chain:
            place = parts_of(key)
            if place is None or not blobs.size(key):
                raise Violation(f"cut {row.checkpoint} names {key}, which is empty")
            if (place.lineage, place.checkpoint) not in self.committed:
                raise Violation(f"cut {row.checkpoint} builds on {place.checkpoint}, which is none")

    def departed(self, instance: object, epoch: int, newest: int) -> None:
        """A participant takes nothing more, and all it has sent was taken."""
        if not isinstance(instance, Node):
            return
        known = self.departures.get(instance.name)
        # One that was declared dead may depart in an epoch that is over.
        if known is None or known.epoch <= epoch:
            sent = {peer: list(ids) for peer, ids in instance.sent.items()}
            self.departures[instance.name] = _Departure(epoch, newest, sent)

    def _stands(self, departure: _Departure) -> bool:
        """Whether no rollback has undone it."""
        back = [cut for epoch, cut in self.went_back.items() if epoch > departure.epoch]
        return all(cut > departure.newest for cut in back)

    def _channel(
        self, row: CheckpointRow, sender: Node, receiver: Node, state: list[list[Any]], late: list[list[Any]]
    ) -> None:
        flying = [message[3][1] for message in state if message[2] in BOOKED]
        before = [message[3][1] for message in late if message[2] in BOOKED]
        sent = sender.sent.get(receiver.called, [])
        got = receiver.got.get(sender.name, [])
        if receiver.term:
            wrong = not _within(before + got + flying, sent)
        else:
            wrong = sent != before + got + flying
        if wrong:
            raise Violation(
                f"cut {row.checkpoint}: {sender.name} sent {receiver.name} {_tail(sent)}; heard are "
                f"{_tail(got)}, in flight {_tail(flying)}, to those before it {_tail(before)}"
            )

    def _state_of(
        self,
        row: CheckpointRow,
        sender: str,
        receiver: str,
        births: Mapping[str, int],
        tables: Mapping[str, ChannelTable],
        waiting: Mapping[str, Mapping[str, list[bytes]]],
    ) -> tuple[list[list[Any]], list[list[Any]]]:
        """What is in flight in the cut: to the receiver, or waiting for its name; and to those of its name
        that left before it was born, of which the sender has not heard.
        """
        here = tables[sender].outgoing
        there = births.get(receiver)
        peers = [peer for peer in here if peer.name == receiver]
        if there is not None and Member(receiver, there) not in peers:
            peers.append(Member(receiver, there))
        flying: list[list[Any]] = []
        late: list[list[Any]] = []
        for peer in peers:
            part = _NONE_YET if peer.birth == there else None
            if part is not None:
                part = tables[receiver].incoming.get(Member(sender, births[sender]), part)
            state = _joined(row, sender, peer, here.get(peer), part)
            if there is not None and peer.birth < there:
                late += state
            else:
                flying += state
        return flying + [next(iter(read_frame(raw, 0))) for raw in waiting[sender].get(receiver, ())], late

    # -- packets ---------------------------------------------------------------------------

    def said(self, payload: bytes) -> None:
        """A coordinator says something: is it true?"""
        if not self.watching:
            return
        doc = unpack_control(payload)
        town = self.town
        if doc["kind"] == "settled":
            lineage = town.lineage
            fate = town.catalog.fate(lineage, doc["checkpoint"])
            if (lineage, doc["checkpoint"]) in self.committed and not doc["committed"]:
                raise Violation(f"checkpoint {doc['checkpoint']} was committed and is announced as aborted")
            if (fate == "committed") != doc["committed"] or fate == "begun":
                said = "committed" if doc["committed"] else "aborted"
                raise Violation(f"checkpoint {doc['checkpoint']} is announced as {said}; its row says {fate}")
        elif doc["kind"] == "resume":
            self.resumed.add((town.lineage, doc["epoch"]))
            self.went_back[doc["epoch"]] = doc["checkpoint"]
            self._all_restored(doc)
        elif doc["kind"] == "born" and doc["undecided"]:
            town.world.hits["join in a snapshot"] += 1
        elif doc["kind"] == "halt":
            raise Violation(f"the system halted: {doc['text']}")

    def _all_restored(self, doc: Mapping[str, Any]) -> None:
        epoch = doc["epoch"]
        for process in self.town.participants():
            endpoint = process.runner.endpoint
            coordinator = self.town.coordinator
            if endpoint is None or coordinator is None or coordinator.coordinator is None:
                continue
            if doc["token"] != self.newest_token or coordinator.coordinator.lease.token != doc["token"]:
                return
            seat = coordinator.coordinator.roster.get(process.name)
            if seat is not None and seat.launch == process.launch and seat.phase != "starting":
                if endpoint.epoch < epoch and process.launch not in self.town.given_up:
                    raise Violation(f"data flows in epoch {epoch}; {process.name} is in {endpoint.epoch}")

    def told(self, checkpoint: int, committed: bool) -> None:
        """A participant has heard of a fate."""
        if not self.watching:
            return
        try:
            fate = self.town.catalog.fate(self.town.lineage, checkpoint)
        except CheckpointNotFound:
            # A row that has served its time.
            return
        # One that is overtaken by a newer committed one may pass for nothing: it costs bytes, never truth.
        overtaken = any(n > checkpoint for line, n in self.committed if line == self.town.lineage)
        if fate == "begun" or (fate == "committed") != committed and not (fate == "committed" and overtaken):
            raise Violation(f"checkpoint {checkpoint} is taken as {committed}; its row says {fate}")

    # -- buffers ---------------------------------------------------------------------------

    def buffers(self, process: Participant) -> None:
        """After every step of a participant."""
        endpoint = process.runner.endpoint
        if endpoint is None:
            return
        for channel in endpoint.incoming.values():
            if channel.peer != endpoint.me and channel.received > channel.processed + channel.window:
                raise Violation(f"{process.name} holds {channel.received - channel.processed} messages")
        if endpoint.queued_bytes > endpoint.mailbox_bytes + MAILBOX_SLACK:
            raise Violation(f"{process.name} has {endpoint.queued_bytes} bytes in its mailbox")
        if len(endpoint.snapshot.full) > 16:
            raise Violation(f"{process.name} knows {len(endpoint.snapshot.full)} undecided checkpoints")

    # -- the end ---------------------------------------------------------------------------

    def readable(self) -> int:
        """Every cut that is listed can be read to its last byte; returns how many there are."""
        town = self.town
        rows = [row for line in town.catalog.lineages("simulated") for row in self._rows(line.lineage)]
        for row in rows:
            if row.fate == "committed" and (row.lineage, row.checkpoint) not in self.committed:
                raise Violation(f"checkpoint {row.checkpoint} became committed, and nobody wrote it")
            try:
                self.cut(row)
            except CutlineError as error:
                raise Violation(f"cut {row.checkpoint} is listed and not readable: {error}") from error
        return len(rows)

    def _rows(self, lineage: str) -> list[CheckpointRow]:
        return list(self.town.catalog.checkpoints("simulated", lineage=lineage, fates=("committed",)))

    def settled_books(self) -> None:
        """Nothing is under way: what was sent was heard, once and in order; what was asked for was done."""
        town = self.town
        nodes: dict[str, Node] = {}
        for process in town.participants():
            state: Any = process.runner.instance
            if isinstance(state, Node):
                nodes[process.name] = state
        books = {node.name: node.sent for node in nodes.values()}
        gone = {name: each.sent for name, each in self.departures.items() if self._stands(each)}
        for sender, sent_by in {**gone, **books}.items():
            for b in nodes.values():
                receiver = b.called
                sent, got = sent_by.get(receiver, []), b.got.get(sender, [])
                if not _within(got, sent) if b.term else sent != got:
                    raise Violation(
                        f"at rest: {sender} sent {receiver} {_tail(sent)}; heard are {_tail(got)}"
                    )
        total = sum(node.balance for node in nodes.values())
        if total != sum(town.program.balances.get(name, 0) for name in nodes):
            raise Violation(f"at rest: {total} in all accounts")
        town.program.check(nodes)


def _joined(
    row: CheckpointRow, sender: str, peer: Member, out: OutPart | None, part: InPart | None
) -> list[list[Any]]:
    """A channel's messages in the cut, both parts joined by number, without a gap.

    Of one that has no part of its own, because it has left or is in no cut yet, the sender has everything.
    """
    processed = part.processed if part is not None else out.released if out is not None else 0
    found: dict[int, list[Any]] = {}
    for frame in (*(part.frames if part is not None else ()), *(out.frames if out is not None else ())):
        for number, message in enumerate(read_frame(frame.body, 0), frame.first):
            if number > processed:
                found[number] = message
    numbers = sorted(found)
    if numbers != list(range(processed + 1, processed + 1 + len(numbers))):
        raise Violation(f"cut {row.checkpoint}: {sender} -> {peer.name} holds {numbers} after {processed}")
    return [found[number] for number in numbers]


def _within(heard: list[int], sent: list[int]) -> bool:
    """Whether all was sent in this order, once. Of one that leaves: what comes then is a dead letter, or its
    successor's, if its name is used again."""
    rest = iter(sent)
    return all(number in rest for number in heard)


def _doc(raw: bytes) -> Any:
    return msgpack.unpackb(raw, strict_map_key=False)


def _tail(ids: list[int]) -> str:
    return str(ids) if len(ids) < 12 else f"[... {', '.join(map(str, ids[-10:]))}] ({len(ids)})"


def _live() -> dict[str, Any]:
    from cutline.participant.handle import live_loaders

    return dict(
        live_loaders(
            lambda name, class_name: Handle(name, class_name, _NOBODY),
            lambda owner, number, target, method: Ref(owner, number, target, method, _NOBODY),
        )
    )


_NOBODY: Any = None
# The part of a receiver that has never had anything of a sender.
_NONE_YET = InPart(0, 0, 0, ())
_CLASSES = Classes()
_LIVE = _live()
