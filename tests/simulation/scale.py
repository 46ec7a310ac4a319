"""``python -m tests.simulation.scale``: what a snapshot of many participants costs, counted and timed.

The automata of `cutline.barrier` alone: an endpoint for each participant, the coordinator's two-phase commit
and its recovery. Packets are handed from one to the other as the values that they are; there is no clock, no
fault, no socket. What is counted is the protocol's: each packet that an automaton asks its shell to send.

A snapshot costs, in messages::

    initiate   one to each participant          prepared   one from each
    marker     one on each open channel         settled    one to each

and nothing else: 3 x participants + open channels. A recovery costs 3 x participants (roll back, restored,
resume). Three snapshots are taken of each size: at rest, with messages in flight, and after a recovery to the
cut with these. The exit status is 1 if one count differs from the formula.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cutline.barrier import ChannelTable, Endpoint, LocalSnapshot, Member, Stamp, wire
from cutline.barrier.actions import (
    Capture,
    Complain,
    Dial,
    EndpointAction,
    Report,
    SendAck,
    SendFrame,
    SendMarker,
    Settle,
)
from cutline.barrier.commit import (
    Announce,
    Begun,
    Decide,
    GlobalCommit,
    ManifestDurable,
    Prepare,
    Prepared,
    RowDecided,
    WriteManifest,
)
from cutline.barrier.cut import claims_of, in_flight
from cutline.barrier.events import (
    AckArrived,
    AtBoundary,
    Durable,
    EndpointEvent,
    Flush,
    FrameArrived,
    Initiated,
    LinkOpened,
    MarkerArrived,
    Released,
    Settled,
)
from cutline.barrier.recovery import Begin, Confirmed, Recovery, Resume, RollBack

__all__ = ("Cost", "Crowd", "Taken", "frame_costs", "main", "mesh", "sparse", "take_all")

RUN = "scale"
FEW = 3
SIZES = (10, 100, 1_000, 10_000)
MESH = 300
FRAMES = (1, 10, 100, 1_000)
BODY = b"m" * 100
# Messages that each timing handles, in frames of whatever size.
TIMED = 20_000

Wave = list[tuple[Member, EndpointEvent]]


def sparse(count: int) -> dict[Member, list[Member]]:
    """Participants that each speak to a few others: a neighbour, one near by, one far away."""
    members = [Member(f"p{k}", 1) for k in range(count)]
    steps = (1, max(2, count // 7), max(3, count // 2))[:FEW]
    return {member: [members[(k + step) % count] for step in steps] for k, member in enumerate(members)}


def mesh(count: int) -> dict[Member, list[Member]]:
    """Participants that each speak to all others."""
    members = [Member(f"p{k}", 1) for k in range(count)]
    return {member: [peer for peer in members if peer != member] for member in members}


class Crowd:
    """Participants' endpoints and the coordinator's automata; `sent` counts their messages by kind."""

    def __init__(self, channels: dict[Member, list[Member]]) -> None:
        self.channels = channels
        self.epoch = 0
        self.newest = self.committed = 0
        self.commit = GlobalCommit()
        self.recovery = Recovery(0)
        self.sent: Counter[str] = Counter()
        self.in_flight = 0
        # What each holds of the channels at its newest capture.
        self.tables: dict[Member, ChannelTable] = {}
        self.endpoints = {me: Endpoint(me, RUN, 0, LocalSnapshot(0, 0, None)) for me in channels}
        self._open_links()

    @property
    def open_channels(self) -> int:
        """How many directed channels there are."""
        return sum(map(len, self.channels.values()))

    def _open_links(self) -> None:
        links = {(me, peer): None for me, peers in self.channels.items() for peer in peers}
        both = {**links, **{(peer, me): None for me, peer in links}}
        for me, peer in both:
            caused = self.endpoints[me].handle(LinkOpened(peer))
            assert not caused, f"{me.name} has {caused} to say on a link where no checkpoint is under way"
        self.carry([(me, Flush()) for me in self.endpoints])

    # -- participants --------------------------------------------------------------------------

    def carry(self, wave: Wave) -> None:
        """Hands on events, and the packets that they cause, until nothing is under way."""
        while wave:
            following: Wave = []
            for member, event in wave:
                following += self._step(member, event)
            wave = following

    def _step(self, member: Member, event: EndpointEvent) -> Wave:
        """What a shell does in a round: the event, what is due at the boundary, what is to travel."""
        endpoint = self.endpoints[member]
        actions = endpoint.handle(event)
        if endpoint.due:
            actions += endpoint.handle(AtBoundary())
        actions += endpoint.handle(Flush())
        caused: Wave = []
        for action in actions:
            caused += self._perform(member, action)
        return caused

    def _perform(self, member: Member, action: Any) -> Wave:
        if isinstance(action, (SendFrame, SendMarker, SendAck)):
            stamp = Stamp(RUN, self.epoch, member, action.peer)
            if isinstance(action, SendFrame):
                self.sent["frame"] += 1
                return [(action.peer, FrameArrived(stamp, action.marks, action.committed, action.frame))]
            if isinstance(action, SendMarker):
                self.sent["marker"] += 1
                return [(action.peer, MarkerArrived(stamp, action.marks, action.committed))]
            self.sent["ack"] += 1
            return [(action.peer, AckArrived(stamp, action.positions))]
        if isinstance(action, Capture):
            self.tables[member] = action.channels
            return [(member, Durable(action.checkpoint, {}, {}))]
        if isinstance(action, Report):
            self.sent["prepared"] += 1
            claims = claims_of(action.channels)
            return self._decide(self.commit.handle(Prepared(member, action.checkpoint, claims, {})))
        if isinstance(action, (Complain, Dial)):
            raise AssertionError(f"{member.name}: {action} where nothing fails and all links are open")
        assert isinstance(action, Settle), action
        return []

    def say(self, each: int) -> None:
        """Sends so many messages on each channel; they arrive, and are not handled."""
        body = [BODY] * each
        self.carry([(me, Released(peer, body)) for me, peers in self.channels.items() for peer in peers])

    def work(self) -> None:
        """Handles all that has arrived."""
        for endpoint in self.endpoints.values():
            while endpoint.head is not None:
                endpoint.head.processed = endpoint.head.frames[0].last
                endpoint.consumed()
        self.carry([(me, Flush()) for me in self.endpoints])

    # -- the coordinator -----------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Takes a snapshot of all; it is committed when this returns."""
        self.newest += 1
        begun = Begun(self.newest, True, tuple(self.endpoints), 0.0)
        self.carry(self._decide(self.commit.handle(begun)))
        assert self.committed == self.newest, f"checkpoint {self.newest} was not committed"

    def _decide(self, actions: Sequence[Any]) -> Wave:
        caused: Wave = []
        for action in actions:
            number = action.checkpoint
            if isinstance(action, Prepare):
                caused += self._initiate()
            elif isinstance(action, WriteManifest):
                self.in_flight = in_flight(action.claims, action.departed)
                caused += self._decide(self.commit.handle(ManifestDurable(number)))
            elif isinstance(action, Decide):
                assert action.commit, f"checkpoint {number} is to be aborted: {action.reason}"
                caused += self._decide(self.commit.handle(RowDecided(number, True, "")))
            else:
                assert isinstance(action, Announce), action
                self.committed = number
                self.sent["settled"] += len(action.roster)
                caused += [(member, Settled(self.epoch, number, True)) for member in action.roster]
        return caused

    def _initiate(self) -> Wave:
        self.sent["initiate"] += len(self.endpoints)
        word = Initiated(self.epoch, self.commit.undecided, self.newest, self.committed)
        return [(member, word) for member in self.endpoints]

    def recover(self) -> None:
        """Everybody goes back to the newest cut, in a new epoch."""
        self.epoch += 1
        cut = self.committed
        for action in self.recovery.handle(Begin(self.epoch, cut, tuple(self.endpoints))):
            assert isinstance(action, RollBack), action
            self.sent["roll_back"] += 1
            me = action.member
            view = LocalSnapshot(cut, cut, cut)
            self.endpoints[me] = Endpoint(me, RUN, self.epoch, view, channels=self.tables[me])
        done: list[RollBack | Resume] = []
        for member in self.endpoints:
            assert not done, "data flows before all were restored"
            self.sent["restored"] += 1
            done = self.recovery.handle(Confirmed(member, self.epoch))
        for action in done:
            assert isinstance(action, Resume), action
            self.sent["resume"] += len(action.roster)
        self._open_links()


@dataclass(frozen=True, slots=True)
class Taken:
    """One snapshot: how it was, what it took, what the formula says."""

    what: str
    participants: int
    channels: int
    sent: Counter[str]
    expected: Counter[str]
    in_flight: int
    seconds: float

    @property
    def fault(self) -> str:
        """How the count differs from the formula; empty if it does not."""
        kinds = sorted({*self.sent, *self.expected})
        wrong = [
            f"{self.sent[kind]} of kind {kind}, the formula says {self.expected[kind]}"
            for kind in kinds
            if self.sent[kind] != self.expected[kind]
        ]
        where = f"{self.participants} participants, {self.channels} channels, {self.what}"
        return f"{where}: {'; '.join(wrong)}" if wrong else ""


def take_all(crowd: Crowd) -> list[Taken]:
    """A snapshot at rest, one with messages in flight, a recovery to it, and one after it."""
    members, channels = len(crowd.channels), crowd.open_channels
    snapshot = Counter(initiate=members, marker=channels, prepared=members, settled=members)

    def taken(what: str, take: Callable[[], None], expected: Counter[str]) -> Taken:
        crowd.sent.clear()
        began = time.process_time()
        take()
        seconds = time.process_time() - began
        return Taken(what, members, channels, Counter(crowd.sent), expected, crowd.in_flight, seconds)

    crowd.say(2)
    crowd.work()
    found = [taken("at rest", crowd.checkpoint, snapshot)]
    crowd.say(2)
    found.append(taken("in flight", crowd.checkpoint, snapshot))
    assert crowd.in_flight == 2 * channels, f"{crowd.in_flight} messages in a cut with {2 * channels}"
    recovery = Counter(roll_back=members, restored=members, resume=members)
    # The ends of a channel greet each other: how far each is.
    recovery["ack"] = channels
    found.append(taken("recovery", crowd.recover, recovery))
    crowd.work()
    found.append(taken("after it", crowd.checkpoint, snapshot))
    return found


# -- what a frame and a message cost ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of processor time for one frame of so many messages."""

    messages: int
    sender: float
    receiver: float
    packing: float


def frame_costs(messages: int, rounds: int = 5, timed: int = TIMED) -> Cost:
    """What one frame costs: its sender (release, cut, number, take the ack), its receiver (order, digest,
    mailbox, ack), and both for packing and unpacking it and its ack; the median of the rounds."""
    frames = max(1, timed // messages)
    samples: list[tuple[float, float, float]] = []
    for _ in range(rounds + 1):
        crowd = Crowd({Member("a", 1): [Member("b", 1)], Member("b", 1): []})
        sender, receiver = crowd.endpoints.values()
        samples.append(_time_frames(sender, receiver, messages, frames))
    # The first round is to get warm.
    medians = [median(taken) for taken in zip(*samples[1:], strict=True)]
    return Cost(messages, *medians)


def _time_frames(a: Endpoint, b: Endpoint, messages: int, frames: int) -> tuple[float, float, float]:
    there, back = Stamp(RUN, 0, a.me, b.me), Stamp(RUN, 0, b.me, a.me)
    clock = time.process_time
    spent = [0.0, 0.0, 0.0]
    # Some frames at a time, as many as a window has room for; the clock is read between.
    some = max(1, min(frames, 10_000 // messages))
    for _ in range(frames // some):
        bodies = [[BODY] * messages for _ in range(some)]
        began = clock()
        actions: list[EndpointAction] = []
        for body in bodies:
            a.handle(Released(b.me, body))
            actions += a.handle(Flush())
        after = clock()
        sent = [action for action in actions if isinstance(action, SendFrame)]
        packets = [wire.pack_frame(there, each.marks, each.committed, each.frame) for each in sent]
        arrived = [wire.unpack(packet) for packet in packets]
        packed = clock()
        actions = []
        for event in arrived:
            b.handle(event)
            channel = b.head
            assert channel is not None
            channel.processed = channel.frames[0].last
            b.consumed()
            actions += b.handle(Flush())
        taken = clock()
        acks = [action for action in actions if isinstance(action, SendAck)]
        answers = [wire.unpack(wire.pack_ack(back, each.positions)) for each in acks]
        unpacked = clock()
        for answer in answers:
            a.handle(answer)
        end = clock()
        assert len(arrived) == len(answers) == some, f"{len(arrived)} frames, {len(answers)} acks"
        assert a.outbox_bytes == 0, f"{a.outbox_bytes} bytes were not released"
        spent[0] += after - began + end - unpacked
        spent[1] += taken - packed
        spent[2] += packed - after + unpacked - taken
    share = 1e6 / (frames // some * some)
    return spent[0] * share, spent[1] * share, spent[2] * share


# -- the tables ------------------------------------------------------------------------------------

_KINDS = ("initiate", "marker", "prepared", "settled", "roll_back", "restored", "resume", "ack", "frame")
_HEADS = ("participants", "channels", "", *_KINDS, "all", "formula", "in flight", "us each")


def _line(cells: Iterable[object]) -> str:
    return "  ".join(f"{cell:>{max(9, len(head))}}" for cell, head in zip(cells, _HEADS, strict=False))


def _print_taken(crowds: Iterable[tuple[str, Crowd]]) -> list[str]:
    print(_line(_HEADS))
    faults = []
    for name, crowd in crowds:
        for each in take_all(crowd):
            counts = [each.sent[kind] for kind in _KINDS]
            cells = [
                f"{each.participants} {name}", each.channels, each.what, *counts, sum(counts),
                sum(each.expected.values()), each.in_flight, f"{each.seconds / sum(counts) * 1e6:.1f}",
            ]  # fmt: skip
            print(_line(cells), flush=True)
            if each.fault:
                faults.append(each.fault)
    return faults


def _print_costs(sizes: Sequence[int]) -> None:
    print("\nmicroseconds of the automata          a frame                          a message")
    heads = ("messages a frame", "sender", "receiver", "wire", "sender", "receiver", "wire")
    print("  ".join(f"{head:>9}" for head in heads))
    for messages in sizes:
        cost = frame_costs(messages)
        frame = (cost.sender, cost.receiver, cost.packing)
        cells = [*(f"{each:.1f}" for each in frame), *(f"{each / messages:.3f}" for each in frame)]
        print(f"{messages:>16}  " + "  ".join(f"{cell:>9}" for cell in cells), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Counts and times; 1 if a count is not what the formula says."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.scale", description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="sparse crowds")
    parser.add_argument("--mesh", type=int, default=MESH, help="a crowd in which all speak to all")
    options = parser.parse_args(arguments)
    print("messages of a snapshot: 3 x participants + open channels; of a recovery: 3 x participants,")
    print("and an ack on each channel when it goes on; us each: of the automata, by the messages counted\n")
    sizes = [int(size) for size in options.sizes.split(",")]
    crowds = [*(("sparse", sparse(size)) for size in sizes), ("mesh", mesh(options.mesh))]
    faults = _print_taken((name, Crowd(channels)) for name, channels in crowds)
    _print_costs(FRAMES)
    for fault in faults:
        print(f"WRONG: {fault}")
    print(f"\n{'the counts differ from the formula' if faults else 'every count is what the formula says'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
