"""A coordinator without processes: participants are links whose packets a test writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from cutline.barrier import Member
from cutline.barrier.wire import PROTOCOL
from cutline.coordinator.launch import Ended
from cutline.coordinator.roster import Seat
from cutline.coordinator.runner import Coordinator, Settings
from cutline.participant.control import pack_control, unpack_control
from cutline.participant.transport import LinkDown, LinkUp, PacketIn, Transport
from cutline.storage import Lease, Owner, Store, pack_key
from cutline.storage.image import Piece, write_image

__all__ = ("City", "Line", "Launchpad")


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Line:
    """The coordinator's end of a link; what it is told is kept."""

    outbound, key, backlog, greeting = False, None, 0, b""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.closed = False

    def send_control(self, payload: bytes) -> None:
        """Keeps a packet."""
        self.heard.append(unpack_control(payload))

    def send(self, payload: bytes) -> None:
        """Nobody sends data to a coordinator's link."""
        raise AssertionError(payload)

    def close(self) -> None:
        """Notes it."""
        self.closed = True

    def kinds(self) -> list[str]:
        """The kinds of what was heard, and forgets it."""
        kinds = [doc["kind"] for doc in self.heard]
        self.heard.clear()
        return kinds

    def last(self, kind: str) -> dict[str, Any]:
        """The newest packet of a kind."""
        return [doc for doc in self.heard if doc["kind"] == kind][-1]


class Launchpad:
    """Starts nothing; knows which launches live."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program: dict[str, Any] = {}
        self.launched: list[tuple[str, str, dict[str, Any]]] = []
        self.living: set[str] = set()
        self.killed: list[str] = []

    def start(self, seat: Seat, mode: str, now: float, **details: Any) -> None:
        """Notes a launch."""
        seat.launch = f"launch-{len(self.launched) + 1}"
        seat.pid = 1000 + len(self.launched)
        seat.phase, seat.launched_at, seat.link, seat.address = "starting", now, None, ""
        self.launched.append((seat.member.name, mode, details))
        self.living.add(seat.launch)

    def adopt(self, seat: Seat) -> None:
        """Nothing to watch."""

    def alive(self, seat: Seat) -> bool:
        """Whether a launch lives."""
        return seat.launch in self.living

    def why_waiting(self, seat: Seat) -> str:
        """Nobody waits."""
        return ""

    def leave(self, node: str, seats: Sequence[Seat]) -> None:
        """There are no nodes."""

    def end(self, seat: Seat) -> None:
        """Notes an end; its `Ended` is the test's to post."""
        if seat.launch in self.living:
            self.killed.append(seat.member.name)

    def close(self) -> None:
        """Nothing to let go of."""


class City:
    """A coordinator and its participants' lines."""

    def __init__(self, store: Store, folder: Path, lineage: str | None = None, **settings: Any) -> None:
        self.store = store
        self.clock = Clock()
        self.lease: Lease = store.catalog.acquire_lease("city", Owner.here("test", 0), 1e9, 0.0)
        self.lineage = lineage or store.catalog.create_lineage(self.lease, None)
        self.c = Coordinator(
            Settings("city", **{"interval": None, **settings}),
            store,
            self.lease,
            self.lineage,
            now=self.clock,
            wall=self.clock,
        )
        self.pad = Launchpad(folder)
        self.c.attach(cast(Transport, None), self.pad)
        self.lines: dict[str, Line] = {}
        # What participants say of their channels; nothing unless it is here.
        self.claims: dict[str, dict[str, Any]] = {}

    def step(self, seconds: float = 0.0) -> None:
        """Time passes; everything posted is taken."""
        self.clock.now += seconds
        while not self.c.queue.empty():
            self.c._take(self.c.queue.get())
        if self.c.ended is None:
            self.c._by_the_clock()

    def hello(self, name: str, phase: str, epoch: int = -1, **fields: Any) -> Line:
        """A participant dials."""
        seat = self.c.roster.get(name)
        member = seat.member if seat is not None else Member(name, 0)
        line = self.lines[name] = Line()
        doc = {
            "protocol": PROTOCOL, "run": self.lineage, "member": list(member), "phase": phase, "epoch": epoch,
            "checkpoint": 0, "address": f"at-{name}", "launch": seat.launch if seat is not None else "",
            "pid": seat.pid if seat is not None else 1, "started": 0.0, "class_name": "x:Y", "error": None,
            "reason": "", "at": -1, "node": "", **fields,
        }  # fmt: skip
        self.c.post(LinkUp(line, pack_control("participant", **doc), None))
        self.step()
        return line

    def say(self, who: str, kind: str, /, **fields: Any) -> None:
        """A participant says something."""
        fields.setdefault("epoch", self.c.epoch)
        self.c.post(PacketIn(self.lines[who], pack_control(kind, member=[who, 0], **fields), True))
        self.step()

    def hang_up(self, name: str) -> None:
        """A participant's link breaks."""
        self.c.post(LinkDown(self.lines[name], "broke"))
        self.step()

    def dies(self, name: str) -> None:
        """A participant's process ends."""
        seat = self.c.roster.get(name)
        assert seat is not None
        self.pad.living.discard(seat.launch)
        self.c.post(Ended(seat.launch, "ended by SIGKILL"))
        self.step()

    def call_on(self, name: str, what: str, **fields: Any) -> Line:
        """Another program connects as `name` and asks for something."""
        line = self.lines[name] = Line()
        self.c.post(LinkUp(line, pack_control("client", protocol=PROTOCOL), None))
        self.step()
        self.say(name, "request", number=1, what=what, **fields)
        return line

    def prepare(self, checkpoint: int, *names: str, **more: Any) -> None:
        """Participants have their images durable; `more`: facts of each."""
        for name in names:
            seat = self.c.roster.get(name)
            assert seat is not None
            key = pack_key("city", self.lineage, self.c.epoch, checkpoint, *seat.member)
            ref = write_image(
                self.store.blobs,
                key,
                header={"participant": name},
                sections=dict.fromkeys(("queued_in", "unreleased_out"), b"\x90"),
                pieces=[Piece("x", b"d" * 32, b"content")],
                regions=[],
                parent=None,
            )
            zeros = ("changed_bytes", "state_bytes", "stall_ms", "detect_ms", "handled", "handlers")
            facts = dict.fromkeys(zeros, 0)
            facts.update(written_bytes=ref.size, captured_at=int(self.clock()), **more)
            claims: dict[str, Any] = self.claims.get(name, {"incoming": [], "outgoing": []})
            self.say(name, "prepared", checkpoint=checkpoint, claims=claims, image=ref.to_doc(), facts=facts)

    def open_for_business(self, *names: str) -> None:
        """A driver and participants that run, and one committed cut with all of them."""
        self.hello("driver", "born")
        self.step()
        self.prepare(self.c.newest, "driver")
        for name in names:
            self.spawn(name)
            self.hello(name, "born")
        if names:
            self.cut("driver", *names)

    def spawn(self, name: str, who: str = "driver", number: int = 0, get: bool = False) -> None:
        """Somebody asks for a participant; a number is another one for each name unless it is given."""
        record = {"class_name": "x:Y", "options": {}, "args": [], "main": b"", "get": get}
        number = number or 100 + sum(map(ord, name))
        self.say(who, "spawn", number=number, name=name, record=record)

    def cut(self, *names: str) -> int:
        """A committed checkpoint on request."""
        self.request(99)
        self.prepare(self.c.newest, *names)
        return self.c.committed

    def request(self, number: int, what: str = "checkpoint", **fields: Any) -> None:
        """The driver asks for something."""
        self.say("driver", "request", number=number, what=what, **fields)
