"""Who belongs to the system: one seat per participant, and what is known of the process in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cutline.barrier import Member
from cutline.participant.transport import Link

__all__ = ("Seat", "SpawnId", "Roster", "spawn_of")


class SpawnId(NamedTuple):
    """Which spawn somebody came from: its spawner, and the spawner's number for it."""

    spawner: str
    birth: int
    number: int


@dataclass
class Seat:
    """A participant as the coordinator sees it.

    Phases: starting (launched, not heard of), running, restoring (told to), restored, lost (no process),
    parked (a driver that has left; see `cutline.coordinator.parting`).
    """

    member: Member
    class_name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    phase: str = "starting"
    launch: str = ""
    pid: int = 0
    started: float = 0.0
    address: str = ""
    flight: str = ""
    link: Link | None = None
    launched_at: float = 0.0
    epoch: int = -1
    beat: Mapping[str, Any] = field(default_factory=dict)
    deaths: int = 0
    # Why it is ended though it never came up.
    overdue: str = ""
    node: str = ""
    spawn: SpawnId | None = None
    # Whether it handles nothing more and is about to depart; told messages that it did not handle.
    leaving: bool = False
    unhandled: int = 0

    def to_doc(self) -> dict[str, Any]:
        """What the catalog keeps, so that a new coordinator finds the process again."""
        return {
            "class_name": self.class_name,
            "options": dict(self.options),
            "launch": self.launch,
            "pid": self.pid,
            "started": self.started,
            "address": self.address,
            "flight": self.flight,
            "node": self.node,
            "spawn": list(self.spawn) if self.spawn is not None else None,
        }

    @classmethod
    def from_doc(cls, name: str, birth: int, doc: Mapping[str, Any]) -> Seat:
        """A seat as the catalog has it."""
        return cls(
            Member(name, birth),
            doc["class_name"],
            doc["options"],
            launch=doc["launch"],
            pid=doc["pid"],
            started=doc["started"],
            address=doc["address"],
            flight=doc["flight"],
            node=doc.get("node", ""),
            spawn=spawn_of(doc),
        )


def spawn_of(doc: Mapping[str, Any]) -> SpawnId | None:
    """What a document says of where somebody came from."""
    found = doc.get("spawn")
    return SpawnId(*found) if found else None


class Roster:
    """All seats, by name."""

    def __init__(self) -> None:
        self.seats: dict[str, Seat] = {}
        self._by_link: dict[Link, Seat] = {}

    def __iter__(self) -> Iterator[Seat]:
        return iter(list(self.seats.values()))

    def get(self, name: str) -> Seat | None:
        """The seat of that name."""
        return self.seats.get(name)

    def connect(self, seat: Seat, link: Link) -> None:
        """A participant is at the other end of this link from now on."""
        self._by_link[link] = seat
        seat.link = link

    def disconnect(self, link: Link) -> None:
        """A link is gone, and perhaps another has taken its place long ago."""
        seat = self.by_link(link)
        if seat is not None:
            seat.link = None
        self._by_link.pop(link, None)

    def by_link(self, link: Link) -> Seat | None:
        """Whose link that is."""
        seat = self._by_link.get(link)
        # A seat that got another link, or lost its place, does not answer for this one any more.
        if seat is None or seat.link is not link or self.seats.get(seat.member.name) is not seat:
            return None
        return seat

    def by_launch(self, launch: str) -> Seat | None:
        """Whose process that is."""
        for seat in self.seats.values():
            if launch and seat.launch == launch:
                return seat
        return None

    def members(self, *phases: str) -> tuple[Member, ...]:
        """Members in one of these phases."""
        return tuple(seat.member for seat in self.seats.values() if seat.phase in phases)
