"""Schedules in which one participant comes to rest, is parked by a checkpoint, and comes back.

At rest it has no links, takes no packet, handles and sends nothing; it captures and hears the coordinator.
When a checkpoint that was begun afterwards commits, its process is gone, and what it said of that cut is its
answer to every later one and its confirmation of every recovery (docs/decisions/007). The oracle of the other
schedules judges all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutline.barrier import Member, commit, recovery
from cutline.barrier.cut import Claims, claims_of
from cutline.barrier.events import AtBoundary, Flush, LinkLost

from .model import Host, Image, Link, Wrong
from .schedule import World

__all__ = ("ParkingWorld",)


@dataclass
class Parked:
    """Who has left, and what stands for it."""

    member: Member
    checkpoint: int
    image: Image
    claims: Claims


class ParkingWorld(World):
    """See the module's head."""

    # Planted bugs of the shells.
    goes_on_at_rest = False
    acks_at_rest = False
    parked_below = False

    def __init__(self, seed: int) -> None:
        self.rester: Host | None = None
        # The checkpoint that the one at rest is to be parked by.
        self.parting: int | None = None
        self.parked: Parked | None = None
        super().__init__(seed)

    # -- leaving -------------------------------------------------------------------------------

    def rest(self, host: Host) -> None:
        self.rester, self.parting = host, None
        self.seen["rest"] += 1
        if self.goes_on_at_rest:
            return
        host.resting = True
        if self.acks_at_rest:
            return
        for link in self.links:
            if host in link.ends and not link.broken:
                self.break_link(link)
        host.notices.clear()
        for peer in list(host.links):
            del host.links[peer]
            self.feed(host, LinkLost(peer))

    def wake(self) -> None:
        """It stays after all."""
        host, self.rester, self.parting = self.rester, None, None
        if host is not None:
            host.resting = False
            self.redial(host)

    def write_row(self, row: commit.Decide) -> None:
        super().write_row(row)
        host = self.rester
        if row.checkpoint != self.parting or host is None:
            return
        self.parting = None
        if not self.fates[row.checkpoint]:
            self.seen["tries another checkpoint"] += 1
        elif self.rng.random() < 0.2:
            self.seen["stays after all"] += 1
            self.wake()
        else:
            self.park(host, row.checkpoint)

    def park(self, host: Host, checkpoint: int) -> None:
        self.seen["parked"] += 1
        self.rester = None
        image = self.images[checkpoint, host.member]
        self.parked = Parked(host.member, checkpoint, image, claims_of(image.table))
        host.dead = True
        for link in self.links:
            if host in link.ends and not link.broken:
                self.break_link(link)
        # Its process is gone; this stands for its seat.
        self.hosts[host.member] = Host(host.member, epoch=self.epoch)
        for number, _ in self.commit.undecided:
            if number > checkpoint:
                self.answer(number)
            else:
                self.coordinate(commit.GiveUp(number, "it has left"))

    def answer(self, checkpoint: int) -> None:
        """What the one that is parked would say."""
        assert self.parked is not None
        member = self.parked.member
        own = self.images.setdefault((checkpoint, member), self.parked.image)
        if own.state != self.parked.image.state or claims_of(own.table) != self.parked.claims:
            raise Wrong(f"{member.name} was not at rest between {self.parked.checkpoint} and {checkpoint}")
        self.durable.add((checkpoint, member))
        self.seen["cut with one parked"] += 1
        self.coordinate(commit.Prepared(member, checkpoint, self.parked.claims, {"checkpoint": checkpoint}))

    def begin(self) -> None:
        before = self.newest
        super().begin()
        if self.parked is not None and self.newest > before:
            self.answer(self.newest)

    # -- coming back ---------------------------------------------------------------------------

    def come_back(self) -> None:
        assert self.parked is not None
        self.seen["came back"] += 1
        self.hosts[self.parked.member] = Host(self.parked.member)
        self.parked = None
        self.recover()

    def recover(self, checkpoint: int | None = None) -> None:
        self.decide_all()
        self.wake()
        parked = self.parked
        if parked is not None and checkpoint is None:
            cuts = [n for n, committed in self.fates.items() if committed and n <= self.newest_committed]
            checkpoint = self.rng.choice(cuts) if self.rng.random() < 0.5 else max(cuts)
            below = checkpoint < parked.checkpoint
            self.seen["recovery behind the parting"] += below
            self.seen["recovery with one parked"] += not below
            if below and not self.parked_below:
                # The system halts, and its program is run again.
                self.hosts[parked.member] = Host(parked.member)
                self.parked = None
        super().recover(checkpoint)

    def obey(self, host: Host, order: Any) -> None:
        if self.parked is None or host.member != self.parked.member:
            super().obey(host, order)
        elif isinstance(order, recovery.RollBack) and order.epoch == self.epoch:
            host.epoch = order.epoch
            self.confirmed.append(recovery.Confirmed(host.member, order.epoch))

    def restore(self, host: Host, *given: Any) -> None:
        host.resting = False
        super().restore(host, *given)

    # -- what does not reach it ----------------------------------------------------------------

    def away(self, host: Host | None) -> bool:
        """Whether it is at rest or gone."""
        if host is None or (host.resting and self.acks_at_rest):
            return False
        return host.resting or (self.parked is not None and host.member == self.parked.member)

    def dial(self, host: Host, peer: Member) -> None:
        if not self.away(host) and not self.away(self.hosts.get(peer)):
            super().dial(host, peer)

    def deliver(self, link: Link, end: int, control: bool, index: int, again: bool) -> None:
        if self.away(link.ends[1 - end]):
            link.lanes[end, control].pop(index)
        else:
            super().deliver(link, end, control, index, again)

    # -- steps ---------------------------------------------------------------------------------

    def step_coordinator(self) -> None:
        if self.rng.random() >= 0.3:
            super().step_coordinator()
        elif self.parked is not None:
            kind = self.rng.random()
            if kind < 0.08:
                self.come_back()
            elif kind < 0.2:
                self.recover()
                for _ in range(3):
                    self.round()
                    self.begin()
            elif kind < 0.4:
                self.begin()
            elif kind < 0.6:
                # Else a checkpoint seldom commits in all that happens here.
                self.round()
        elif self.recovery.restoring:
            return
        elif self.rester is None:
            # Whoever has a spawn under way would use the newborn, which is no rest.
            able = [h for h in self.hosts.values() if h.works and h.endpoint and not h.endpoint.spawns]
            if able:
                self.rest(self.rng.choice(able))
        elif self.parting is None:
            before = self.newest
            self.begin()
            self.parting = self.newest if self.newest > before else None
        elif self.rng.random() < 0.2:
            self.round()

    def step_host(self) -> None:
        if self.rester is not None and self.rng.random() < 0.2:
            if self.acks_at_rest:
                self.feed(self.rester, Flush())
            self.feed(self.rester, AtBoundary())
        else:
            super().step_host()

    def round(self) -> bool:
        if self.rester is not None:
            self.feed(self.rester, AtBoundary())
        return super().round()

    def calm(self) -> None:
        self.wake()
        if self.parked is not None:
            self.come_back()
        super().calm()
