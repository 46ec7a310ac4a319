"""The network: how long a packet takes, and whether it arrives once, twice, late or never.

Everything travels over the product's own links in memory (`transport_local`); here only the moment is chosen.
A lane keeps its order, as a stream does, but between participants it may do worse: a packet comes twice, or
after the next one; sometimes the link breaks before one that was overtaken is there. A broken link loses a
suffix. A partition holds up everything between two groups, and
most of its links break.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cutline.barrier.events import FrameArrived, MarkerArrived
from cutline.barrier.wire import unpack
from cutline.participant.control import unpack_control
from cutline.participant.transport_local import Kind, LocalHub, LocalTransport

from .world import World

__all__ = ("Manners", "Network")


class Manners(NamedTuple):
    """How a network behaves. Seconds and probabilities."""

    shortest: float
    longest: float
    twice: float
    overtaken: float
    slow: float
    # How often a link breaks after a packet was overtaken on it, and before that one arrives.
    breaks: float

    @classmethod
    def drawn(cls, world: World) -> Manners:
        """Some networks are calm, some are not."""
        pick = world.rng.choice
        return cls(
            shortest=pick((0.0001, 0.001)),
            longest=pick((0.005, 0.05, 0.3)),
            twice=pick((0.0, 0.0, 0.02, 0.2)),
            overtaken=pick((0.0, 0.0, 0.05, 0.3)),
            slow=pick((0.0, 0.002, 0.02)),
            breaks=pick((0.0, 0.01, 0.05)),
        )


CALM = Manners(0.0001, 0.0005, 0.0, 0.0, 0.0, 0.0)


class Network(LocalHub):
    """A hub whose deliveries happen at moments of the world."""

    def __init__(self, world: World, manners: Manners) -> None:
        super().__init__()
        self.world = world
        self.manners = manners
        self.apart: frozenset[str] = frozenset()
        self.healed_at = 0.0
        # Until when a pair is apart.
        self.pairs: dict[frozenset[str], float] = {}
        # Where a lane is free again: what is sent later arrives later.
        self._free: dict[tuple[str, str, Kind], float] = {}

    def carry(
        self,
        kind: Kind,
        ends: tuple[str, str],
        payload: bytes,
        effect: Callable[[], None],
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        """See `LocalHub.carry`; `effect` may be performed more than once: a link that is down ignores it."""
        world, manners = self.world, self.manners
        delay = world.span(manners.shortest, manners.longest)
        if manners.slow and world.chance(manners.slow):
            delay += world.span(0.01, 1.0)
        if self.apart and (ends[0] in self.apart) != (ends[1] in self.apart):
            delay = max(delay, self.healed_at - world.now)
        if self.pairs:
            delay = max(delay, self.pairs.get(frozenset(ends), 0.0) - world.now)
        between = kind == "data" or (kind == "control" and not _coordinates(ends))
        if between and manners.overtaken and world.chance(manners.overtaken):
            world.faults["packet overtaken"] += 1
            arrival = world.now + delay + world.span(0.001, 0.1)
            if kind == "data" and manners.breaks and world.chance(manners.breaks):
                arrival += world.span(0.01, 0.5)
                world.after(arrival - world.now - 0.0005, lambda: self._cut_off(ends))
        else:
            lane = (*ends, kind if kind != "down" else "data")
            arrival = max(world.now + delay, self._free.get(lane, 0.0))
            self._free[lane] = arrival
            if kind == "down":
                # The end of a link is told after everything that was sent before it.
                arrival = max(arrival, self._free.get((*ends, "control"), 0.0))

        def arrive() -> None:
            if world.traced:
                world.detail(f"{ends[0]:>16} -> {ends[1]:16} {describe(kind, payload)}")
            forget()
            effect()

        world.after(arrival - world.now, arrive)
        if between and manners.twice and world.chance(manners.twice):
            world.faults["packet doubled"] += 1
            world.after(arrival - world.now + world.span(0.0001, 0.3), effect)

    def part(self, names: frozenset[str], seconds: float) -> None:
        """Holds up what goes between these and the others; links between them break, mostly."""
        self.apart, self.healed_at = names, self.world.now + seconds
        for transport in list(self.listeners.values()):
            self._break(transport, names)

    def heal(self) -> None:
        """What is sent from now on travels as usual."""
        self.apart = frozenset()

    def separate(self, pair: frozenset[str], seconds: float) -> None:
        """Holds up what goes between two, and breaks their links."""
        self.pairs[pair] = self.world.now + seconds
        self.world.after(seconds, lambda: self._join(pair))
        for transport in list(self.listeners.values()):
            for link in sorted(transport.links, key=repr):
                if link.peer is not None and {transport.name, link.peer.transport.name} == pair:
                    link.sever()

    def _join(self, pair: frozenset[str]) -> None:
        if self.pairs.get(pair, 0.0) <= self.world.now:
            self.pairs.pop(pair, None)

    def sever(self, transport: LocalTransport) -> None:
        """One link of a transport breaks; what is under way on it is lost."""
        links = sorted(transport.links, key=repr)
        if links:
            self.world.rng.choice(links).sever()

    def _cut_off(self, ends: tuple[str, str]) -> None:
        """The link on which a packet comes too late."""
        there = self.listeners.get(f"local:{ends[1]}")
        for link in sorted(there.links, key=repr) if there is not None else ():
            if link.peer is not None and link.peer.transport.name == ends[0]:
                self.world.fault("link broken before what was overtaken", *ends)
                link.sever()

    def _break(self, transport: LocalTransport, names: frozenset[str]) -> None:
        here = transport.name in names
        for link in sorted(transport.links, key=repr):
            peer = link.peer
            if peer is not None and here != (peer.transport.name in names) and self.world.chance(0.7):
                link.sever()


def describe(kind: Kind, payload: bytes) -> str:
    """What a packet says, for the trace."""
    if kind in ("connect", "down"):
        return kind
    try:
        event = unpack(payload)
    except ValueError:
        doc = unpack_control(payload)
        shown = ("checkpoint", "committed", "epoch", "undecided", "name")
        return f"{doc['kind']} { ({key: doc[key] for key in shown if key in doc}) }"
    epoch = f"epoch {event.stamp.epoch}"
    if isinstance(event, FrameArrived):
        frame, marks = event.frame, [tuple(mark) for mark in event.marks]
        return f"frame {frame.first}..{frame.last} {epoch} marks {marks}"
    if isinstance(event, MarkerArrived):
        return f"marker {[tuple(mark) for mark in event.marks]} {epoch}"
    return f"ack {tuple(event.positions)} {epoch}"


def _coordinates(ends: tuple[str, str]) -> bool:
    return ends[0].startswith("coordinator") or ends[1].startswith("coordinator")
