"""A small random model of a whole system, without threads, clocks or bytes on a wire.

It drives the real automata (`Endpoint`, `GlobalCommit`, `Recovery`) through one random schedule per seed.
A `Host` stands for a process with its shell; a `Link` for a duplex connection of two lanes. What may go
wrong: packets are late, early, doubled and, when a link breaks, lost; the coordinator's words and the
reports to it are late, lost and doubled; captures, manifests and hosts fail; hosts that were given up go
on in their old epoch.

The oracle needs nothing of barrier/: every message has an id of its own, and every host's *state* is the
lists of ids that it sent and applied per channel. A committed cut is right if for each channel, applied
followed by the channel's state is exactly sent. What a schedule shows wrong is raised as `Wrong`.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cutline.barrier import ChannelTable, Endpoint, Frame, LocalSnapshot, Member, Spawn, Stamp, actions, wire
from cutline.barrier.events import (
    AtBoundary,
    CaptureFailed,
    Durable,
    Flush,
    Gone,
    Leave,
    LinkLost,
    LinkOpened,
    Released,
    SpawnAnswered,
    Spawned,
)

RUN = "run"
MESSAGE = struct.Struct(">IHH")
DISK = "no space left"


Reported = actions.Report | actions.Complain | actions.AskBirth | actions.Depart


class Wrong(Exception):
    """The schedule showed something that must never be."""


def ids_of(frame: Frame) -> dict[int, int]:
    """number -> id of each message of a frame."""
    found = [message for message, _, _ in MESSAGE.iter_unpack(frame.body)]
    if len(found) != frame.last - frame.first + 1:
        raise Wrong(f"frame {frame.first}..{frame.last} holds {len(found)} messages")
    return dict(zip(range(frame.first, frame.last + 1), found, strict=True))


@dataclass
class State:
    """What a participant's image holds: all it ever did, as ids."""

    applied: dict[Member, list[int]] = field(default_factory=dict)
    sent: dict[Member, list[int]] = field(default_factory=dict)
    spawned: list[int] = field(default_factory=list)
    leaving: bool = False

    def copy(self) -> State:
        return State(
            {peer: list(ids) for peer, ids in self.applied.items()},
            {peer: list(ids) for peer, ids in self.sent.items()},
            list(self.spawned),
            self.leaving,
        )


class Image(NamedTuple):
    state: State
    table: ChannelTable


@dataclass(eq=False)
class Link:
    """A connection: packets by (sending end, is it the control lane)."""

    ends: tuple[Host, Host]
    broken: bool = False
    lanes: dict[tuple[int, bool], list[bytes]] = field(
        default_factory=lambda: {(end, control): [] for end in (0, 1) for control in (False, True)}
    )
    known: list[bool] = field(default_factory=lambda: [False, False])

    def other(self, host: Host) -> Host:
        return self.ends[1] if self.ends[0] is host else self.ends[0]

    def put(self, host: Host, control: bool, packet: bytes) -> None:
        if not self.broken:
            self.lanes[self.ends.index(host), control].append(packet)


@dataclass(eq=False)
class Host:
    """A process: the shell around an endpoint."""

    member: Member
    endpoint: Endpoint | None = None
    state: State = field(default_factory=State)
    epoch: int = 0
    flowing: bool = False
    dead: bool = False
    retired: bool = False
    links: dict[Member, Link] = field(default_factory=dict)
    notices: list[tuple[bool, Link]] = field(default_factory=list)
    orders: list[Any] = field(default_factory=list)
    persisting: list[int] = field(default_factory=list)
    slack: dict[Member, int] = field(default_factory=dict)
    # It captures, and does nothing else.
    resting: bool = False

    @property
    def works(self) -> bool:
        return self.flowing and not self.dead and not self.resting

    def snapshot(self) -> LocalSnapshot:
        assert self.endpoint is not None
        return self.endpoint.snapshot


class Faults(NamedTuple):
    """How bad one schedule is."""

    reorder: float
    double: float
    lose: float
    window: int
    mailbox: int
    busy: float
    slow: tuple[float, float]


def faults_of(rng: random.Random) -> Faults:
    """Schedules differ in kind: some net loses nothing, some window lets one message through."""
    return Faults(
        reorder=rng.choice((0.0, 0.2, 0.8)),
        double=rng.choice((0.0, 0.05, 0.3)),
        lose=rng.choice((0.0, 0.2, 0.6)),
        window=rng.choice((1, 3, 8, 8, 64, 65536)),
        mailbox=rng.choice((8, 40, 1 << 20, 1 << 20)),
        busy=rng.choice((0.2, 0.5, 0.9)),
        slow=rng.choice(((0.0, 0.0), (0.8, 0.0), (0.0, 0.95), (0.8, 0.8))),
    )


class Hosts:
    """The participants' half of the world: hosts, links, packets, messages."""

    # A planted bug of the shell: one more message is handled before what is due is captured.
    captures_late = False

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.faults = faults_of(self.rng)
        self.seen: Counter[str] = Counter()
        self.hosts: dict[Member, Host] = {}
        self.zombies: list[Host] = []
        self.links: list[Link] = []
        self.images: dict[tuple[int, Member], Image] = {}
        self.durable: set[tuple[int, Member]] = set()
        self.fates: dict[int, bool] = {}
        self.history: dict[int, dict[tuple[Member, Member], list[int]]] = {}
        self.reports: list[tuple[Host, Reported]] = []
        # Who has left in the history that remains, and what it had done until then.
        self.left: dict[Member, State] = {}
        self.last_id = 0

    def everybody(self) -> list[Host]:
        return [*self.hosts.values(), *self.zombies]

    # -- what a shell does ---------------------------------------------------------------------

    def feed(self, host: Host, event: Any) -> None:
        """One event into a host's endpoint; its actions are performed in order."""
        if host.endpoint is None or host.dead:
            return
        for action in host.endpoint.handle(event):
            self.perform(host, action)

    def perform(self, host: Host, action: actions.EndpointAction) -> None:
        if isinstance(action, (actions.SendFrame, actions.SendMarker, actions.SendAck)):
            self.send_packet(host, action)
        elif isinstance(action, actions.Dial):
            self.dial(host, action.peer)
        elif isinstance(action, actions.Capture):
            self.capture(host, action)
        elif isinstance(action, actions.Settle):
            self.check_settle(action)
        elif isinstance(action, actions.Heed):
            self.heed(host, *action.word)
        elif isinstance(action, actions.Undelivered):
            self.take_back(host, action)
        else:
            if isinstance(action, actions.Complain) and action.reason != DISK:
                self.seen["complaint about a decided checkpoint"] += 1
                if self.fates.get(action.checkpoint) is not False:
                    raise Wrong(f"{host.member.name} refuses {action.checkpoint}: {action.reason}")
            self.reports.append((host, action))

    def send_packet(
        self, host: Host, action: actions.SendFrame | actions.SendMarker | actions.SendAck
    ) -> None:
        link = host.links.get(action.peer)
        if link is None:
            return
        stamp = Stamp(RUN, host.epoch, host.member, action.peer)
        if isinstance(action, actions.SendFrame):
            packet = wire.pack_frame(stamp, action.marks, action.committed, action.frame)
        elif isinstance(action, actions.SendMarker):
            packet = wire.pack_marker(stamp, action.marks, action.committed)
        else:
            packet = wire.pack_ack(stamp, action.positions)
        link.put(host, not isinstance(action, actions.SendFrame), packet)

    def capture(self, host: Host, action: actions.Capture) -> None:
        self.seen["capture"] += 1
        if action.against is not None:
            if action.full or not self.fates[action.against]:
                raise Wrong(f"capture {action.checkpoint} is a delta against {action.against}")
            if (action.against, host.member) not in self.durable:
                raise Wrong(f"{host.member.name} has no image {action.against} to build on")
        for part in action.channels.incoming.values():
            self.seen["capture inside a frame"] += bool(
                part.frames and part.frames[0].first <= part.processed
            )
        assert host.endpoint is not None
        self.seen["capture with early frames"] += any(end.early for end in host.endpoint.incoming.values())
        self.seen["mark known at capture"] += any(
            action.checkpoint in end.marks for end in host.endpoint.incoming.values()
        )
        self.seen["released withheld"] += any(
            end.released < end.received for end in host.endpoint.incoming.values()
        )
        self.seen["overlapping captures"] += len(host.snapshot().captured) > 1
        if not host.retired:
            self.images[action.checkpoint, host.member] = Image(host.state.copy(), action.channels)
        host.persisting.append(action.checkpoint)

    def check_settle(self, action: actions.Settle) -> None:
        fate = self.fates.get(action.checkpoint)
        newer = [n for n, committed in self.fates.items() if committed and n > action.checkpoint]
        if fate is None or (fate != action.committed and not (fate and newer)):
            raise Wrong(f"checkpoint {action.checkpoint} is settled as {action.committed}; it is {fate}")

    def boundary(self, host: Host) -> None:
        if host.endpoint is not None and host.endpoint.due:
            self.feed(host, AtBoundary())

    def work(self, host: Host) -> bool:
        """Handles one message, after whatever is due was captured."""
        if not self.captures_late:
            self.boundary(host)
        endpoint = host.endpoint
        if endpoint is None or endpoint.head is None:
            self.boundary(host)
            return False
        channel = endpoint.head
        frame = channel.frames[0]
        number = channel.processed + 1
        message, ttl, _ = MESSAGE.unpack_from(frame.body, (number - frame.first) * MESSAGE.size)
        self.apply(host, channel.peer, message)
        channel.processed = number
        if number == frame.last:
            endpoint.consumed()
        if host.state.leaving:
            # Nothing is handled any more; whoever asked is told so.
            self.say(host, 0, self.rng.randint(0, 1), [channel.peer])
        elif ttl:
            self.say(host, ttl - 1, self.rng.randint(0, 2))
        self.boundary(host)
        return True

    def apply(self, host: Host, peer: Member, message: int) -> None:
        mine = host.state.applied.setdefault(peer, [])
        mine.append(message)
        sent = self.history[host.epoch].get((peer, host.member), [])
        if len(mine) > len(sent) or sent[len(mine) - 1] != message:
            raise Wrong(f"{host.member.name} applied {mine} of {peer.name}, which sent {sent}")

    def say(self, host: Host, ttl: int, times: int, peers: Sequence[Member] = ()) -> None:
        """A handler's sends leave at its end, per receiver in order."""
        box: dict[Member, list[bytes]] = {}
        for _ in range(times):
            # The youngest are spoken to most: that is where a channel opens late.
            known = peers or list(self.hosts)
            peer = self.rng.choice(known[-2 if self.rng.random() < 0.4 else 0 :])
            self.last_id += 1
            host.state.sent.setdefault(peer, []).append(self.last_id)
            self.history[host.epoch].setdefault((host.member, peer), []).append(self.last_id)
            box.setdefault(peer, []).append(MESSAGE.pack(self.last_id, ttl, 0))
        for peer, messages in box.items():
            self.seen["self-send"] += peer == host.member
            self.feed(host, Released(peer, messages))

    def make(self, host: Host) -> None:
        """A handler spawns; its number is that of the state, so a re-run after a rollback uses it again."""
        number = len(host.state.spawned) + 1
        host.state.spawned.append(number)
        self.seen["spawned by a handler"] += 1
        self.feed(host, Spawned(Spawn(number, "", None)))

    def heed(self, host: Host, what: str, number: int, member: Member) -> None:
        """Somebody that this host spawned is up, or somebody has left, having taken `number` messages."""
        assert host.endpoint is not None
        if what == "left":
            self.part(host, member, number)
        elif number in host.endpoint.spawns:
            self.feed(host, SpawnAnswered(number))
            self.say(host, 1, self.rng.randint(0, 2), [member])

    def leave(self, host: Host) -> None:
        """A handler leaves: what is sent is sent, nothing more is handled."""
        self.seen["leaves"] += 1
        host.state.leaving = True
        self.feed(host, Leave())

    def part(self, host: Host, member: Member, last: int) -> None:
        """Somebody has left: what it has not taken comes back, and all that it has taken was sent."""
        self.feed(host, Gone(member, last))
        if host.retired or host.epoch != max(self.history):
            return
        sent, taken = host.state.sent.get(member, []), self.left[member].applied.get(host.member, [])
        if sent != taken:
            raise Wrong(f"{host.member.name} sent {sent} to {member.name}, which left having taken {taken}")

    def take_back(self, host: Host, action: actions.Undelivered) -> None:
        """Messages that were never taken: as if they had not been sent."""
        bodies = b"".join(action.bodies)
        ids = [message for message, _, _ in MESSAGE.iter_unpack(bodies)]
        self.seen["undelivered to one that left"] += 1
        for sent in (host.state.sent[action.peer], self.history[host.epoch][host.member, action.peer]):
            if sent[-len(ids) :] != ids:
                raise Wrong(f"{host.member.name} gets back {ids} of {sent}, sent to {action.peer.name}")
            del sent[-len(ids) :]

    def persist(self, host: Host, failing: bool) -> None:
        checkpoint = host.persisting.pop(self.rng.randrange(len(host.persisting)))
        if failing:
            self.feed(host, CaptureFailed(checkpoint, DISK))
            return
        if not host.retired:
            self.durable.add((checkpoint, host.member))
        self.feed(host, Durable(checkpoint, {"checkpoint": checkpoint}, {}))

    # -- links ---------------------------------------------------------------------------------

    def dial(self, host: Host, peer: Member) -> None:
        target = self.hosts.get(peer)
        # A greeting of an older incarnation is refused by whoever is dialed.
        if target is None or target.dead or host.retired or target is host:
            return
        if any(not link.broken and host in link.ends and target in link.ends for link in self.links):
            return
        link = Link((host, target))
        self.links.append(link)
        host.notices.append((True, link))
        target.notices.append((True, link))

    def break_link(self, link: Link) -> None:
        self.seen["link broken"] += 1
        link.broken = True
        for lane in link.lanes.values():
            before = len(lane)
            lane[:] = [packet for packet in lane if self.rng.random() < 0.3]
            self.seen["packet lost"] += before - len(lane)
        for host in link.ends:
            host.notices.append((False, link))

    def notice(self, host: Host) -> None:
        """A host hears of a link, opened or lost, in the order in which it happened."""
        opened, link = host.notices.pop(0)
        peer = link.other(host).member
        if opened:
            link.known[link.ends.index(host)] = True
            if link.other(host).retired:
                return
            host.links[peer] = link
        elif host.links.get(peer) is link:
            del host.links[peer]
        else:
            return
        if host.flowing:
            self.feed(host, LinkOpened(peer) if opened else LinkLost(peer))
            self.redial(host)

    def redial(self, host: Host) -> None:
        if host.works and host.endpoint is not None:
            for peer in host.endpoint.pending_dials():
                self.dial(host, peer)

    def lanes(self) -> list[tuple[Link, int, bool]]:
        """Lanes with packets whose receiver has heard of the link."""
        self.links = [link for link in self.links if not link.broken or any(link.lanes.values())]
        return [
            (link, end, control)
            for link in self.links
            for (end, control), lane in link.lanes.items()
            if lane and link.known[1 - end]
        ]

    def deliver(self, link: Link, end: int, control: bool, index: int, again: bool) -> None:
        lane = link.lanes[end, control]
        self.seen["packet reordered"] += index > 0
        self.seen["packet doubled"] += again
        packet = lane[index] if again else lane.pop(index)
        host = link.ends[1 - end]
        if host.endpoint is None or host.dead:
            return
        self.seen["packet of another epoch"] -= host.endpoint.fenced
        self.feed(host, wire.unpack(packet))
        self.seen["packet of another epoch"] += host.endpoint.fenced
        self.check_flow(host)

    def check_flow(self, host: Host) -> None:
        assert host.endpoint is not None
        for peer, end in host.endpoint.incoming.items():
            room = end.processed + self.faults.window
            if peer != host.member and end.received > max(room, host.slack.get(peer, 0)):
                raise Wrong(f"{end.received} received with room up to {room}")

    # -- restoring -----------------------------------------------------------------------------

    def restore(self, host: Host, epoch: int, checkpoint: int, floor: int, members: Sequence[Member]) -> None:
        """A host becomes what the image of a cut says, in a new epoch; nothing flows yet."""
        image = self.images.get((checkpoint, host.member)) if host.member in members else None
        table = ChannelTable({}, {}) if image is None else image.table
        packed = wire.incoming_to_doc(table), wire.outgoing_to_doc(table), wire.spawns_to_doc(table)
        host.state = State() if image is None else image.state.copy()
        host.endpoint = Endpoint(
            host.member,
            RUN,
            epoch,
            LocalSnapshot(floor, checkpoint, None if image is None else checkpoint),
            channels=wire.table_from_docs(*packed),
            window=self.faults.window,
            mailbox_bytes=self.faults.mailbox,
        )
        if host.state.leaving:
            host.endpoint.handle(Leave())
        host.epoch, host.flowing = epoch, False
        host.persisting.clear()
        # Wishes and departures are of an epoch; a report of an old checkpoint may still come.
        late = (actions.AskBirth, actions.Depart)
        self.reports = [
            entry for entry in self.reports if entry[0] is not host or not isinstance(entry[1], late)
        ]
        host.slack = {p: part.upto + self.faults.window for p, part in table.incoming.items()}
        host.links = {
            peer: link for peer, link in host.links.items() if self.hosts.get(peer) is link.other(host)
        }

    def resume(self, host: Host) -> None:
        host.flowing = True
        for peer in host.links:
            self.feed(host, LinkOpened(peer))
        self.redial(host)
        self.ask_again(host)

    def ask_again(self, host: Host) -> None:
        """What the coordinator may not have heard, or may have forgotten."""
        assert host.endpoint is not None
        self.reports += [(host, actions.AskBirth(spawn)) for spawn in host.endpoint.spawns.values()]

    def flush(self, host: Host) -> None:
        if host.works:
            self.feed(host, Flush())
            self.redial(host)
