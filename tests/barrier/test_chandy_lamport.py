"""What the paper says, and that it holds here.

K. M. Chandy and L. Lamport, *Distributed Snapshots: Determining Global States of Distributed Systems*, ACM
Transactions on Computer Systems 3(1), 1985. Where the protocol goes another way than the paper (markers
overtake messages, channels lose and reorder), the test says what takes the place of the paper's rule.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from cutline.barrier import ChannelTable, Endpoint, LocalSnapshot, Member, Open, Stamp
from cutline.barrier.actions import Capture, EndpointAction, SendFrame, SendMarker
from cutline.barrier.cut import check, claims_of, in_flight
from cutline.barrier.events import (
    AtBoundary,
    Flush,
    FrameArrived,
    Initiated,
    LinkOpened,
    MarkerArrived,
    Released,
)

P, Q, R = Member("p", 1), Member("q", 2), Member("r", 3)
INITIATED = Initiated(1, (Open(1, False),), 1, 0)


class Process:
    """A process of the paper: it sends, receives and records, nothing else."""

    def __init__(self, me: Member, *peers: Member) -> None:
        self.end = Endpoint(me, "run", 1, LocalSnapshot(0, 0, None))
        self.recorded: ChannelTable | None = None
        self.sent: list[EndpointAction] = []
        for peer in peers:
            self.end.handle(LinkOpened(peer))

    def send(self, peer: Member, *messages: bytes) -> None:
        for message in messages:
            self.perform(self.end.handle(Released(peer, [message])))
            self.perform(self.end.handle(Flush()))

    def perform(self, actions: list[EndpointAction]) -> None:
        for action in actions:
            if isinstance(action, Capture):
                self.recorded = action.channels
            else:
                self.sent.append(action)

    def record(self) -> None:
        self.end.handle(INITIATED)
        self.perform(self.end.handle(AtBoundary()))

    def take(self, sender: Process, *packets: EndpointAction) -> None:
        """Packets of a sender arrive, in this order; before each message whatever is due is recorded."""
        stamp = Stamp("run", 1, sender.end.me, self.end.me)
        for packet in packets:
            if isinstance(packet, SendFrame):
                self.end.handle(FrameArrived(stamp, packet.marks, packet.committed, packet.frame))
            elif isinstance(packet, SendMarker):
                self.end.handle(MarkerArrived(stamp, packet.marks, packet.committed))
            self.perform(self.end.handle(AtBoundary()))

    def receive(self) -> None:
        """The process handles all that arrived."""
        while self.end.head is not None:
            self.perform(self.end.handle(AtBoundary()))
            self.end.consumed()

    def packets(self, peer: Member) -> list[SendFrame | SendMarker]:
        return [a for a in self.sent if isinstance(a, (SendFrame, SendMarker)) and a.peer == peer]


def pair() -> tuple[Process, Process]:
    return Process(P, Q), Process(Q, P)


def state_of_channel(p: Process, q: Process) -> list[bytes]:
    """The messages in the recorded state of the channel from p to q, by the union of both parts."""
    assert p.recorded is not None and q.recorded is not None
    into, out = q.recorded.incoming.get(P), p.recorded.outgoing.get(Q)
    found = {}
    for part in (into, out):
        for frame in part.frames if part else ():
            found[frame.first] = frame.body
    return [found[n] for n in sorted(found) if not into or n > into.processed]


def proves_itself(*processes: Process) -> bool:
    tables = {process.end.me: process.recorded for process in processes}
    return check({me: claims_of(table) for me, table in tables.items() if table is not None}) == []


def test_marker_sending_rule() -> None:
    """ "p sends one marker along c after p records its state and before p sends further messages along
    c." """
    p, _ = pair()
    p.send(Q, b"1")
    p.record()
    p.send(Q, b"2")
    first, marker, second = p.packets(Q)
    assert isinstance(first, SendFrame) and first.marks == ()
    assert isinstance(marker, SendMarker) and isinstance(second, SendFrame)
    assert marker.marks == second.marks


def test_for_each_channel_directed_away_from_p() -> None:
    """ "For each channel c, incident on, and directed away from p" """
    p = Process(P, Q, R)
    p.send(Q, b"1")
    p.send(R, b"1")
    p.record()
    assert [packet.peer for packet in p.sent if isinstance(packet, SendMarker)] == [Q, R]


def test_marker_receiving_rule_first_marker() -> None:
    """ "if q has not recorded its state then ... q records its state; q records the state c as the empty
    sequence" """
    p, q = pair()
    p.send(Q, b"1")
    p.record()
    q.take(p, p.packets(Q)[0])
    q.receive()
    q.take(p, p.packets(Q)[1])
    assert q.recorded is not None
    assert state_of_channel(p, q) == [] and proves_itself(p, q)


def test_marker_receiving_rule_later_marker() -> None:
    """ "the sequence of messages received along c after q's state was recorded and before q received the
    marker along c." Here nothing is recorded afterwards: p keeps what q does not release."""
    p, q = pair()
    p.send(Q, b"1")
    q.take(p, *p.packets(Q))
    q.receive()
    q.record()
    p.send(Q, b"2", b"3")
    p.record()
    q.take(p, *p.packets(Q)[1:])
    q.receive()
    assert state_of_channel(p, q) == [b"2", b"3"] and proves_itself(p, q)


def test_termination_without_initiative() -> None:
    """A process that never heard of the initiator records when a marker reaches it, over any path."""
    p, q, r = Process(P, Q), Process(Q, P, R), Process(R, Q)
    p.send(Q, b"1")
    q.send(R, b"1")
    p.record()
    q.take(p, *p.packets(Q))
    r.take(q, *q.packets(R))
    assert r.recorded is not None and proves_itself(p, q, r)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_channels_may_be_worse_than_the_paper_s(order: tuple[int, ...]) -> None:
    """ "Channels are assumed to have infinite buffers, to be error-free, and to deliver messages in the order
    sent." Here marks travel on every frame, so that neither order nor the marker itself matters."""
    p, q = pair()
    p.send(Q, b"1", b"2")
    p.record()
    p.send(Q, b"3")
    packets = p.packets(Q)
    q.take(p, *[packets[n] for n in order])
    q.receive()
    q.take(p, *packets)
    assert state_of_channel(p, q)[-2:] in ([b"1", b"2"], [b"2"], [])
    assert q.recorded is not None and proves_itself(p, q)
    assert b"3" not in state_of_channel(p, q)


def test_a_lost_marker_changes_nothing() -> None:
    p, q = pair()
    p.send(Q, b"1")
    p.record()
    p.send(Q, b"2")
    q.take(p, *[packet for packet in p.packets(Q) if isinstance(packet, SendFrame)])
    q.receive()
    assert state_of_channel(p, q) == [b"1"] and proves_itself(p, q)


def test_the_state_of_a_channel() -> None:
    """ "The state of a channel is the sequence of messages sent along the channel, excluding the messages
    received along the channel." """
    p, q = pair()
    p.send(Q, b"1", b"2", b"3")
    q.take(p, p.packets(Q)[0])
    q.receive()
    p.record()
    q.record()
    assert state_of_channel(p, q) == [b"2", b"3"]
    assert p.recorded is not None and q.recorded is not None
    assert in_flight({P: claims_of(p.recorded), Q: claims_of(q.recorded)}) == 2


def test_what_a_process_can_record() -> None:
    """ "A process can record its own state and the messages it sends and receives; it can record nothing
    else." Each part of a channel is made from one end alone."""
    p, q = pair()
    p.send(Q, b"1")
    p.record()
    assert p.recorded is not None
    assert p.recorded.outgoing[Q].frames[0].body == b"1" and p.recorded.incoming == {}
    q.record()
    assert q.recorded == ChannelTable({}, {})


def test_recording_does_not_alter_the_computation() -> None:
    """ "it must run concurrently with, but not alter, this underlying computation." """
    bodies = []
    for recording in (False, True):
        p, q = pair()
        p.send(Q, b"1")
        if recording:
            p.record()
        p.send(Q, b"2")
        frames = [packet.frame for packet in p.packets(Q) if isinstance(packet, SendFrame)]
        q.take(p, *p.packets(Q))
        received = []
        while q.end.head is not None:
            received.append(q.end.head.frames[0].body)
            q.end.consumed()
        bodies.append((frames, received))
    assert bodies[0] == bodies[1]


def test_the_single_token() -> None:
    """The paper's token: in no recorded state is it in two places, or in none."""
    for steps in range(5):
        p, q = pair()
        if steps > 0:
            p.send(Q, b"token")
        if steps == 1:
            p.record()
            q.record()
        if steps > 1:
            q.take(p, *p.packets(Q))
        if steps == 2:
            q.record()
            p.record()
        if steps > 2:
            q.receive()
        p.record()
        q.take(p, *p.packets(Q))
        q.record()
        assert p.recorded is not None and q.recorded is not None
        at_p = Q not in p.recorded.outgoing or p.recorded.outgoing[Q].last == 0
        at_q = P in q.recorded.incoming and q.recorded.incoming[P].processed == 1
        token = [at_p, state_of_channel(p, q) == [b"token"], at_q]
        assert token.count(True) == 1, f"after {steps} steps the token is at {token}"
        assert proves_itself(p, q)
