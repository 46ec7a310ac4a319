"""When participants send each other more than they take: who waits for whom, and the halt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cutline.errors import Overloaded
from cutline.participant.messages import pack_error

from .roster import Seat

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("Overload", "circle")

# Seconds in which every participant gives more than one sign of life.
PATIENCE = 2.5


def circle(start: str, waits: Mapping[str, Sequence[str]]) -> list[str]:
    """Who waits in a circle, as far as it can be reached from `start`; empty if nobody does.

    `waits`: whom each waits for, the most important first.
    """
    path: list[str] = []
    seen: dict[str, None] = {}

    def follow(name: str) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        if name in seen:
            return []
        seen[name] = None
        path.append(name)
        for other in waits.get(name, ()):
            found = follow(other)
            if found:
                return found
        path.pop()
        return []

    return follow(start)


class Overload:
    """A participant has no room left for what it sends: the halt, when it is known who waits for whom."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        self.pending: tuple[Seat, Mapping[str, Any], float] | None = None

    def happened(self, seat: Seat, doc: Mapping[str, Any]) -> None:
        """A participant says so. What the others wait for comes with their signs of life."""
        if self.pending is None:
            self.pending = seat, doc, self.c.now() + PATIENCE
        self.tick()

    def tick(self) -> None:
        """Halts as soon as a circle is known, or when everybody has been heard."""
        c = self.c
        if self.pending is None or c.halted is not None:
            return
        seat, doc, until = self.pending
        waits = {other.member.name: list(other.beat.get("waits", ())) for other in c.roster}
        waits[seat.member.name] = list(doc["waits"])
        found = circle(seat.member.name, waits)
        if found or c.now() >= until:
            self.pending = None
            self._halt(seat.member.name, waits, found, doc["text"])

    def _halt(self, name: str, waits: Mapping[str, Sequence[str]], found: list[str], why: str) -> None:
        c = self.c
        if found:
            row = " waits for ".join([*found, found[0]])
            who = f"{row}: each sends the next one more than that one takes"
        else:
            first = waits[name][0] if waits[name] else "nobody"
            running = next((s.beat.get("running", "") for s in c.roster if s.member.name == first), "")
            who = f"{name} waits for {first}" + (f", which is inside {running}" if running else "")
        text = (
            f"{name!r} has no room left for what it sends ({why}). {who}. Send less for each message that is "
            "handled, or give it more room (spill_bytes)."
        )
        error = Overloaded(text, participant=name, cycle=found)
        c.halt(text, pack_error(error, participant=name), name)
