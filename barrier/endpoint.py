"""One participant's side of the protocol: its channels, its mailbox order and its captures.

``handle(event)`` takes one event and returns the list of actions it causes; state and effects are
separate, there is no clock and no I/O here. The shell (`cutline.participant.runner`) owns the
instance, feeds it from one thread, and performs the actions in order.

The shell owns                                  The endpoint owns
  handlers, and when one runs                     numbers, dedup, order, acks, credit
  serialization of messages and state             when a capture is due, and what of the channels it holds
  connections, packets, files                     which packet of which incarnation counts
  when it has nothing more at hand (`Flush`)      what travels then

The mailbox: `head` is the channel whose oldest frame is next; the shell handles that frame's messages
one by one, sets ``channel.processed`` after each, and calls `consumed` after the last. Between two
messages, at a boundary, it asks for what is `due`.

A channel to oneself has no wire part: what is sent to oneself is in the mailbox at once, and recorded
there, once.

An endpoint that raised is dead: its state may be half changed, and the shell must not feed it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .actions import (
    AskBirth,
    Capture,
    Complain,
    Depart,
    Dial,
    EndpointAction,
    Heed,
    Report,
    SendAck,
    SendFrame,
    SendMarker,
    Settle,
    Undelivered,
)
from .channel import WINDOW, Incoming, Outgoing
from .events import (
    AckArrived,
    AtBoundary,
    CaptureFailed,
    CoordinatorOpened,
    Durable,
    EndpointEvent,
    Flush,
    FrameArrived,
    Gone,
    Initiated,
    Leave,
    LinkLost,
    LinkOpened,
    MarkerArrived,
    Released,
    Settled,
    SpawnAnswered,
    Spawned,
    Told,
)
from .messages import ChannelTable, InPart, Mark, Member, OutPart, Positions, Spawn, Stamp
from .snapshot import LocalSnapshot

__all__ = ("Endpoint", "MAILBOX_BYTES", "REMEMBERED_GONE")

MAILBOX_BYTES = 64 * 1024 * 1024
REMEMBERED_GONE = 10_000


class Endpoint:
    """The protocol automaton of one participant in one epoch."""

    def __init__(
        self,
        me: Member,
        run: str,
        epoch: int,
        snapshot: LocalSnapshot,
        *,
        channels: ChannelTable | None = None,
        window: int = WINDOW,
        mailbox_bytes: int = MAILBOX_BYTES,
    ) -> None:
        self.me = me
        self.run = run
        self.epoch = epoch
        self.snapshot = snapshot
        self.window = window
        self.mailbox_bytes = mailbox_bytes
        self.incoming: dict[Member, Incoming] = {}
        self.outgoing: dict[Member, Outgoing] = {}
        self.order: deque[Incoming] = deque()
        self.queued_bytes = 0
        self.fenced = 0
        self.dead = False
        self._links: set[Member] = set()
        # Senders that have something to transmit, or may have.
        self._dirty: dict[Member, Outgoing] = {}
        self._touched: dict[Member, Incoming] = {}
        self._tables: dict[int, ChannelTable] = {}
        self._reports: dict[int, Report | Complain] = {}
        # Spawns are messages too: in the outbox, and so in every cut, until the newborn may be used.
        self.spawns: dict[int, Spawn] = {}
        self._words: list[Any] = []
        self.leaving = False
        self.departure: Depart | None = None
        # Peers that have left: what still comes from them is old, what is still sent to them is for nobody.
        self._gone: dict[Member, None] = {}
        if channels is not None:
            self._restore(channels)
        self._steps: dict[type, Callable[[Any], list[EndpointAction]]] = {
            Released: self._released,
            Spawned: self._spawned,
            SpawnAnswered: self._spawn_answered,
            Told: self._told,
            Leave: self._leave,
            Gone: self._peer_gone,
            Flush: self._flush,
            FrameArrived: self._frame_arrived,
            MarkerArrived: self._marker_arrived,
            AckArrived: self._ack_arrived,
            LinkOpened: self._link_opened,
            LinkLost: self._link_lost,
            Initiated: self._initiated,
            Settled: self._settled,
            AtBoundary: self._at_boundary,
            Durable: self._durable,
            CaptureFailed: self._capture_failed,
            CoordinatorOpened: self._coordinator_opened,
        }

    def _restore(self, channels: ChannelTable) -> None:
        for peer, in_part in channels.incoming.items():
            receiver = self.incoming[peer] = Incoming.restored(peer, in_part, self.window)
            self.order.extend([receiver] * len(receiver.frames))
            self.queued_bytes += receiver.queued_bytes
            self._touched[peer] = receiver
        for peer, out_part in channels.outgoing.items():
            self.outgoing[peer] = Outgoing.restored(peer, out_part, self.window)
        self.spawns = {spawn.number: spawn for spawn in channels.spawns}

    def handle(self, event: EndpointEvent) -> list[EndpointAction]:
        """One event in, its actions out.

        Raises:
            AssertionError: the endpoint raised before, or the event contradicts the protocol.
        """
        if self.dead:
            raise AssertionError(f"the endpoint of {self.me.name} failed before; it takes no more events")
        try:
            return self._steps[type(event)](event)
        except Exception:
            self.dead = True
            raise

    @property
    def due(self) -> bool:
        """Whether something is to be captured, or heeded, at the next boundary."""
        snapshot = self.snapshot
        return len(snapshot.captured) != len(snapshot.full) or bool(self._words)

    @property
    def head(self) -> Incoming | None:
        """The channel whose oldest frame is to be handled next."""
        return self.order[0] if self.order else None

    def consumed(self) -> None:
        """The frame at the head was handled to its end."""
        channel = self.order.popleft()
        self.queued_bytes -= len(channel.frames[0].body)
        channel.consumed()
        if channel.peer not in self._gone:
            self._touched[channel.peer] = channel
        elif not channel.frames:
            del self.incoming[channel.peer]

    @property
    def outbox_bytes(self) -> int:
        """Bytes kept for receivers that have not released them."""
        kept = 0
        for sender in self.outgoing.values():
            kept += sender.pending_bytes + sender.frame_bytes
        return kept

    def is_gone(self, peer: Member) -> bool:
        """Whether that peer is known to have left."""
        return peer in self._gone

    def pending_dials(self) -> list[Member]:
        """Peers that something waits for and that have no link."""
        return [peer for peer, end in self.outgoing.items() if not end.linked and (end.frames or end.pending)]

    # -- sending -------------------------------------------------------------------------------

    def _released(self, event: Released) -> list[EndpointAction]:
        if event.peer in self._gone:
            return [Undelivered(event.peer, event.messages)]
        assert self.departure is None, f"{self.me.name} has departed and sends to {event.peer.name}"
        sender = self.outgoing.get(event.peer)
        if sender is None:
            sender = self.outgoing[event.peer] = Outgoing(
                event.peer, self.snapshot.open_captures(), self.window
            )
            # The peer may have dialed before there was anything to say to it.
            sender.linked = event.peer in self._links
        sender.push(event.messages)
        if event.peer == self.me:
            self._loop_back(sender)
            return []
        self._dirty[event.peer] = sender
        return [] if sender.linked else [Dial(event.peer)]

    def _spawned(self, event: Spawned) -> list[EndpointAction]:
        self.spawns[event.spawn.number] = event.spawn
        return [AskBirth(event.spawn)]

    def _spawn_answered(self, event: SpawnAnswered) -> list[EndpointAction]:
        self.spawns.pop(event.number, None)
        return []

    def _loop_back(self, sender: Outgoing) -> None:
        receiver = self._receiver(self.me)
        sender.cut()
        for frame in sender.frames:
            receiver.arrived(frame)
            self.order.append(receiver)
            self.queued_bytes += len(frame.body)
        sender.acked(Positions(receiver.received, receiver.received, receiver.received + self.window))

    def _flush(self, event: Flush) -> list[EndpointAction]:
        actions = self._acks()
        committed = self.snapshot.committed
        for peer, sender in list(self._dirty.items()):
            sender.flush()
            marks = self._marks(sender)
            actions += [SendFrame(peer, marks, committed, frame) for frame in sender.transmit()]
            if not sender.pending and sender.transmitted >= sender.sent:
                del self._dirty[peer]
        if self.leaving and self.departure is None and self._is_drained():
            self.departure = Depart(self._final())
            actions.append(self.departure)
        return actions

    def _marks(self, sender: Outgoing) -> tuple[Mark, ...]:
        marks = sender.marks
        return tuple(marks[n] for n in sorted(marks)) if marks else ()

    def _acks(self) -> list[EndpointAction]:
        room = self.queued_bytes < self.mailbox_bytes
        actions: list[EndpointAction] = []
        waiting: dict[Member, Incoming] = {}
        for peer, receiver in self._touched.items():
            if peer == self.me:
                continue
            now, said = receiver.positions(room), receiver.acked
            if (
                now.limit - said.limit >= self.window // 4
                or now.received != said.received
                or now.released != said.released
            ):
                receiver.acked = now
                actions.append(SendAck(peer, now))
            elif not room:
                waiting[peer] = receiver
        self._touched = waiting
        return actions

    # -- receiving -----------------------------------------------------------------------------

    def _fresh(self, stamp: Stamp) -> bool:
        if stamp.run == self.run and stamp.epoch == self.epoch and stamp.receiver == self.me:
            return stamp.sender not in self._gone
        self.fenced += 1
        return False

    def _receiver(self, peer: Member) -> Incoming:
        receiver = self.incoming.get(peer)
        if receiver is None:
            captured = [n for n, _ in self.snapshot.open_captures()]
            receiver = self.incoming[peer] = Incoming(peer, captured, self.window)
        return receiver

    def _learn(
        self, peer: Member, marks: Sequence[Mark], committed: int
    ) -> tuple[Incoming, list[EndpointAction]]:
        snapshot = self.snapshot
        actions: list[EndpointAction] = []
        if committed > snapshot.committed:
            actions += self._settle(committed, True)
        receiver = self._receiver(peer)
        if marks:
            live = [mark for mark in marks if not snapshot.is_decided(mark.checkpoint)]
            snapshot.learn(snapshot.opens_of(live))
            receiver.learn(live)
        return receiver, actions

    def _frame_arrived(self, event: FrameArrived) -> list[EndpointAction]:
        # Who has departed takes nothing more: it stays in the sender's outbox, and is told to be undelivered.
        if not self._fresh(event.stamp) or self.departure is not None:
            return []
        peer = event.stamp.sender
        receiver, actions = self._learn(peer, event.marks, event.committed)
        before = len(receiver.frames)
        if receiver.arrived(event.frame):
            gained = len(receiver.frames) - before
            self.order.extend([receiver] * gained)
            self.queued_bytes += sum(len(receiver.frames[before + k].body) for k in range(gained))
        else:
            # A double means the sender has not heard where we are.
            receiver.acked = Positions(-1, -1, receiver.acked.limit)
        self._touched[peer] = receiver
        return actions

    def _marker_arrived(self, event: MarkerArrived) -> list[EndpointAction]:
        if not self._fresh(event.stamp):
            return []
        receiver, actions = self._learn(event.stamp.sender, event.marks, event.committed)
        self._touched[event.stamp.sender] = receiver
        return actions

    def _ack_arrived(self, event: AckArrived) -> list[EndpointAction]:
        if not self._fresh(event.stamp):
            return []
        sender = self.outgoing.get(event.stamp.sender)
        if sender is not None:
            sender.acked(event.positions)
        return []

    # -- connections ---------------------------------------------------------------------------

    def _link_opened(self, event: LinkOpened) -> list[EndpointAction]:
        peer = event.peer
        self._links.add(peer)
        actions: list[EndpointAction] = []
        sender = self.outgoing.get(peer)
        if sender is not None:
            sender.link_opened()
            self._dirty[peer] = sender
            if sender.marks:
                actions.append(SendMarker(peer, self._marks(sender), self.snapshot.committed))
        receiver = self.incoming.get(peer)
        if receiver is not None:
            receiver.acked = Positions(-1, -1, receiver.acked.limit)
            self._touched[peer] = receiver
        return actions

    def _link_lost(self, event: LinkLost) -> list[EndpointAction]:
        self._links.discard(event.peer)
        sender = self.outgoing.get(event.peer)
        if sender is not None:
            sender.link_lost()
        return []

    # -- checkpoints ---------------------------------------------------------------------------

    def _initiated(self, event: Initiated) -> list[EndpointAction]:
        if event.epoch != self.epoch:
            return []
        actions: list[EndpointAction] = []
        for checkpoint in self.snapshot.missing(event.undecided, event.newest):
            actions += self._settle(checkpoint, checkpoint == event.committed)
        if event.committed > self.snapshot.committed:
            actions += self._settle(event.committed, True)
        self.snapshot.learn(event.undecided)
        self.snapshot.raise_floor(min([event.newest + 1, *(n for n, _ in event.undecided)]) - 1)
        return actions

    def _told(self, event: Told) -> list[EndpointAction]:
        if event.epoch != self.epoch:
            return []
        self._words.append(event.word)
        return self._initiated(Initiated(event.epoch, event.undecided, event.newest, event.committed))

    def _settled(self, event: Settled) -> list[EndpointAction]:
        return self._settle(event.checkpoint, event.committed) if event.epoch == self.epoch else []

    def _settle(self, checkpoint: int, committed: bool) -> list[EndpointAction]:
        captured_here = self.snapshot.settled(checkpoint, committed)
        for peer, receiver in self.incoming.items():
            receiver.decided(checkpoint)
            self._touched[peer] = receiver
        for sender in self.outgoing.values():
            sender.decided(checkpoint)
        self._tables.pop(checkpoint, None)
        self._reports.pop(checkpoint, None)
        return [Settle(checkpoint, committed)] if captured_here else []

    def _at_boundary(self, event: AtBoundary) -> list[EndpointAction]:
        due = self.snapshot.due()
        words, self._words = self._words, []
        heeds = [Heed(word) for word in words]
        if not due:
            return list(heeds)
        actions: list[EndpointAction] = []
        for checkpoint, full in due:
            late = self._too_late(checkpoint)
            if late:
                actions += [*self._settle(checkpoint, False), Complain(checkpoint, late)]
                continue
            outgoing = {peer: end.captured(checkpoint, full) for peer, end in self.outgoing.items()}
            if self.me in outgoing:
                self.incoming[self.me].learn([Mark(checkpoint, outgoing[self.me].last, full)])
            parts = {peer: end.captured(checkpoint) for peer, end in self.incoming.items()}
            # One that has sent nothing before the cut may be born after it: the image must not know it.
            incoming = {peer: part for peer, part in parts.items() if part.upto}
            table = self._tables[checkpoint] = ChannelTable(incoming, outgoing, tuple(self.spawns.values()))
            self.snapshot.captured[checkpoint] = True
            # One that has departed may not be in the roster any more, and its last images in no cut.
            against = None if full or self.departure is not None else self.snapshot.base
            actions.append(Capture(checkpoint, full, against, table))
        for peer, sender in self.outgoing.items():
            if sender.linked:
                actions.append(SendMarker(peer, self._marks(sender), self.snapshot.committed))
        return [*actions, *heeds]

    def _too_late(self, checkpoint: int) -> str:
        """Why this checkpoint cannot be captured here any more; "" if it can.

        A sender that goes on without its mark knows the fate already, and without us that was an abort:
        its marker came late, and nobody told us yet.
        """
        for peer, end in self.incoming.items():
            mark = end.marks.get(checkpoint)
            if mark is not None and end.processed > mark:
                return f"message {end.processed} of {peer.name} was handled already, its mark is {mark}"
        return ""

    def _durable(self, event: Durable) -> list[EndpointAction]:
        table = self._tables.get(event.checkpoint)
        if table is None:
            return []
        report = self._reports[event.checkpoint] = Report(event.checkpoint, table, event.image, event.facts)
        return [report]

    def _capture_failed(self, event: CaptureFailed) -> list[EndpointAction]:
        if event.checkpoint not in self._tables:
            return []
        complaint = self._reports[event.checkpoint] = Complain(event.checkpoint, event.reason)
        return [complaint]

    def _coordinator_opened(self, event: CoordinatorOpened) -> list[EndpointAction]:
        said: list[EndpointAction] = [self._reports[n] for n in sorted(self._reports)]
        return said if self.departure is None else [*said, self.departure]

    # -- leaving -------------------------------------------------------------------------------

    def _leave(self, event: Leave) -> list[EndpointAction]:
        self.leaving = True
        return []

    def _is_drained(self) -> bool:
        """Whether all was handled, all that was sent is released, and every checkpoint known here decided."""
        if self.order or self.spawns or self.snapshot.full or self._words:
            return False
        # Asked after a flush: what is pending then waits behind frames that are not released either.
        return not any(end.released < end.sent for end in self.outgoing.values())

    def _final(self) -> ChannelTable:
        """How the channels end; at any later capture they would be the same."""
        incoming = {
            peer: InPart(end.processed, end.received, end.digest, ())
            for peer, end in self.incoming.items()
            if peer != self.me
        }
        outgoing = {
            peer: OutPart(end.sent, end.released, end.released_digest, ())
            for peer, end in self.outgoing.items()
            if peer != self.me
        }
        return ChannelTable(incoming, outgoing)

    def _peer_gone(self, event: Gone) -> list[EndpointAction]:
        peer = event.peer
        self._gone[peer] = None
        if len(self._gone) > REMEMBERED_GONE:
            del self._gone[next(iter(self._gone))]
        self._dirty.pop(peer, None)
        self._touched.pop(peer, None)
        receiver = self.incoming.get(peer)
        # What it had sent is here to the last message, since it left with an empty outbox.
        if receiver is not None and not receiver.frames:
            del self.incoming[peer]
        sender = self.outgoing.pop(peer, None)
        bodies = sender.after(event.last) if sender is not None else []
        return [Undelivered(peer, bodies)] if bodies else []
