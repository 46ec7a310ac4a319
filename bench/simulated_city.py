"""A real coordinator whose participants are packets: what it costs it to have many of them.

`cutline.coordinator.runner.Coordinator` runs as it does in its process, with a store in memory (the same code
but for the disk's calls) unless it is given another. Its participants are links that count what they are
told. They greet, are spawned, and answer each checkpoint with the `prepared` that a participant of few
channels sends: each speaks to three others and has ten messages under way to each. What they say is packed
beforehand and is not timed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, cast

from cutline.barrier import Member
from cutline.barrier.wire import PROTOCOL
from cutline.coordinator.runner import Coordinator, Settings
from cutline.participant.control import pack_control
from cutline.participant.driver import DRIVER
from cutline.participant.transport import LinkUp, PacketIn, Transport
from cutline.storage import BlobStore, Owner, Store, memory_store, pack_key
from tests.coordinator.city import Launchpad

__all__ = ("SimulatedCity",)

SYSTEM = "bench"
FEW = 3
# Seconds between two packets by the coordinator's clock, so that its rounds do not depend on the machine.
APART = 0.00005
DIGEST = 0x9E3779B97F4A7C15


class _Line:
    """The coordinator's end of a link; counts what it is told."""

    outbound, key, backlog, greeting = False, None, 0, b""

    def __init__(self) -> None:
        self.heard = 0
        self.last_at = 0.0

    def send_control(self, payload: bytes) -> None:
        """Counts a packet."""
        self.heard += 1
        self.last_at = time.perf_counter()

    def send(self, payload: bytes) -> None:
        """Nobody sends data to a coordinator's link."""
        raise AssertionError(payload)

    def close(self) -> None:
        """Nothing is there to close."""


class SimulatedCity:
    """A coordinator, and so many participants with the driver."""

    def __init__(self, participants: int, store: Store | None = None, packs: BlobStore | None = None) -> None:
        self.store = store or memory_store()
        # Participants write their packs, in processes of their own.
        self.packs = packs or self.store.blobs
        self.lease = self.store.catalog.acquire_lease(SYSTEM, Owner.here("bench", 0), 1e9, 0.0)
        self.lineage = self.store.catalog.create_lineage(self.lease, None)
        settings = Settings(SYSTEM, interval=None, lost_after=1e9, spawn_timeout=1e9)
        self.now = 1000.0
        self.c = Coordinator(
            settings, self.store, self.lease, self.lineage, now=lambda: self.now, wall=lambda: self.now
        )
        self.c.attach(cast(Transport, None), Launchpad(Path("nowhere")))
        self.lines: dict[str, _Line] = {}
        self.members: list[Member] = []
        self._greet(DRIVER)
        self._answer(self._persist(self.c.newest))
        names = [f"participant-{number:05}" for number in range(participants - 1)]
        for number, name in enumerate(names):
            record = {"class_name": "city:Citizen", "options": {}, "args": [], "main": b"", "get": False}
            self._say(DRIVER, "spawn", number=number + 1, name=name, record=record)
        self.c.step(0.0)
        for name in names:
            self._greet(name)
        self.checkpoint()

    def _greet(self, name: str) -> None:
        seat = self.c.roster.get(name)
        member = seat.member if seat is not None else Member(name, 0)
        line = self.lines[name] = _Line()
        self.members.append(member)
        greeting = pack_control(
            "participant",
            protocol=PROTOCOL, run=self.lineage, member=list(member), phase="born", epoch=-1, checkpoint=0,
            address=f"unix:/run/{name}", launch=seat.launch if seat is not None else "", pid=1, started=0.0,
            class_name="city:Citizen", error=None, reason="", at=-1, node="",
        )  # fmt: skip
        self.c.post(LinkUp(line, greeting, None))
        self.c.step(0.0)

    def _say(self, who: str, kind: str, /, **fields: Any) -> None:
        self.c.post(PacketIn(self.lines[who], pack_control(kind, epoch=self.c.epoch, **fields), True))

    def _claims(self, place: int) -> dict[str, Any]:
        """What a participant says of its channels: three out, three in, ten messages under way on each."""
        others = self.members[1:]
        if place == 0 or len(others) <= FEW:
            return {"incoming": [], "outgoing": [], "spawns": []}
        me, count = place - 1, len(others)
        steps = (1, max(2, count // 7), max(3, count // 2))
        ends = [[10, DIGEST + 10], [20, DIGEST + 20]]
        return {
            "incoming": [[*others[(me - step) % count], 10, 10, DIGEST + 10] for step in steps],
            "outgoing": [[*others[(me + step) % count], 20, 10, ends] for step in steps],
            "spawns": [],
        }

    def _prepared(self, place: int, checkpoint: int) -> tuple[str, bytes]:
        """The key of a participant's pack, and what it says when its image is durable."""
        member = self.members[place]
        key = pack_key(SYSTEM, self.lineage, self.c.epoch, checkpoint, *member)
        facts = {
            "stall_ms": 0.4, "detect_ms": 0.3, "changed_bytes": 4000, "state_bytes": 40_000,
            "handled": 1000 + place, "captured_at": self.now, "handlers": 900 + place,
            "written_bytes": 4096, "image_kind": "full",
        }  # fmt: skip
        packet = pack_control(
            "prepared",
            epoch=self.c.epoch,
            member=list(member),
            checkpoint=checkpoint,
            claims=self._claims(place),
            image={"key": key, "digest": os.urandom(32), "kind": "full", "chain": [key], "size": 4096},
            facts=facts,
        )
        return key, packet

    def packets(self) -> list[bytes]:
        """What the participants will say of the next checkpoint, as the coordinator gets it."""
        return [self._prepared(place, self.c.newest + 1)[1] for place in range(len(self.members))]

    def _persist(self, checkpoint: int) -> list[PacketIn]:
        """All packs become durable; returns what is said of them."""
        said = []
        for place, member in enumerate(self.members):
            key, packet = self._prepared(place, checkpoint)
            self.packs.create(key, [b"x"])
            said.append(PacketIn(self.lines[member.name], packet, True))
        return said

    def _answer(self, said: list[PacketIn]) -> None:
        # One at a time, each in a round of its own: bursts would only be cheaper.
        for event in said:
            self.now += APART
            self.c.post(event)
            self.c.step(0.0)

    def commit_time(self) -> float:
        """Seconds from the moment that the last one is prepared until all have been told of the commit."""
        self.now += 1.0
        self.c.step(0.0)
        number = self.c.newest + 1
        said = self._persist(number)
        self.c.post(PacketIn(self.lines[DRIVER], pack_control("request", number=1, what="checkpoint"), True))
        self.c.step(0.0)
        self._answer(said[:-1])
        began = time.perf_counter()
        self._answer(said[-1:])
        if self.c.committed != number:
            raise AssertionError(f"checkpoint {number} of {len(said)} participants was not committed")
        # The driver hears of it once more, after retention.
        return max(line.last_at for name, line in self.lines.items() if name != DRIVER) - began

    def checkpoint(self) -> float:
        """Seconds of processor time that the coordinator takes for one checkpoint, retention included."""
        # Time enough since the last one for all that is done once a second.
        self.now += 1.0
        self.c.step(0.0)
        number = self.c.newest + 1
        said = self._persist(number)
        before = sum(line.heard for line in self.lines.values())
        request = PacketIn(self.lines[DRIVER], pack_control("request", number=1, what="checkpoint"), True)
        began = time.process_time()
        self.c.post(request)
        self.c.step(0.0)
        self._answer(said)
        seconds = time.process_time() - began
        if self.c.committed != number:
            raise AssertionError(f"checkpoint {number} of {len(said)} participants was not committed")
        heard = sum(line.heard for line in self.lines.values()) - before
        # The driver also hears that it is committed, and gets its reply.
        if heard != 2 * len(said) + 2:
            raise AssertionError(f"{heard} messages to {len(said)} participants; two to each are wanted")
        return seconds
