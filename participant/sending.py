"""How what handlers sent leaves: in order per receiver, newborns first.

A name that nobody has resolved is asked for; what was sent there waits, as a part of the image, until it is.
What can never be delivered ends here: whoever asked gets an error for an answer, a tell becomes a dead letter
of its sender.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cutline.barrier import Endpoint, Member, Spawn
from cutline.barrier.events import EndpointEvent, Released, Spawned

from .desk import Desk, HandlerRaised
from .messages import ASK, CHASE, TELL, decode_frame

if TYPE_CHECKING:
    from .liaison import Liaison
    from .peers import Peers

__all__ = ("Sending",)


class Sending(ABC):
    """The part of `cutline.participant.runner.Runner` that sends."""

    me: Member
    desk: Desk
    peers: Peers
    liaison: Liaison
    tainted: bool
    endpoint: Endpoint | None
    unresolved: dict[str, list[bytes]]

    @abstractmethod
    def feed(self, event: EndpointEvent) -> None:
        """One event for the endpoint, its actions performed."""

    @abstractmethod
    def fail(self, failure: HandlerRaised) -> None:
        """User code raised where nobody hears it, and no message can be retried."""

    def local_answer(self, number: int, error: bytes) -> None:
        """An own question ends with an error of this side; a step of its own, at a boundary."""
        self.step_of_answer(number, False, error)

    def step_of_answer(self, number: int, ok: bool, packed: Any) -> None:
        """An answer that comes from no participant; a step of its own, at a boundary."""
        try:
            self.desk.answered(number, ok, packed)
            self.desk.drain()
        except HandlerRaised as failure:
            self.fail(failure)
        if self.desk.out and not self.tainted:
            self._release()

    @property
    def is_waiting(self) -> bool:
        """Whether something that was sent waits here for what it needs to leave."""
        return bool(self.unresolved)

    @property
    def is_still(self) -> bool:
        """Whether nothing is under way here but suspended handlers: only a message, a person or a timer can
        make anything happen. Any thread may ask; messages that wait to be handled are not looked at."""
        desk, endpoint = self.desk, self.endpoint
        asked = self.is_waiting or desk.out or desk.after or desk.in_handler or desk.leaving or self.tainted
        return endpoint is not None and not (asked or endpoint.spawns)

    def waits(self) -> dict[str, Any]:
        """For how many people it waits, its earliest timer, and whether that is all it waits for."""
        people = sum(each.is_question for each in self.desk.effects.values())
        return {"people": people, "timer": self.desk.next_timer, "still": self.is_still}

    def _release(self) -> None:
        self.release(self.desk.out)

    def release(self, out: list[tuple[str | Member, bytes]]) -> None:
        """What handlers sent leaves, in order per receiver, and `out` is empty afterwards."""
        groups: dict[Member, list[bytes]] = {}
        last: str | Member | None = None
        row: list[bytes] = []
        if self.desk.has_spawned:
            self._release_spawns(out)
        for target, message in out:
            if target is not last:
                last, row = target, self._row(groups, target)
            row.append(message)
        out.clear()
        for member, messages in groups.items():
            self.feed(Released(member, messages))

    def _release_spawns(self, out: list[tuple[str | Member, Any]]) -> None:
        """Takes the spawns out of what leaves; they go ahead of what is sent to the newborns."""
        spawns = [message for _, message in out if isinstance(message, Spawn)]
        if spawns:
            out[:] = [entry for entry in out if not isinstance(entry[1], Spawn)]
            for spawn in spawns:
                self.feed(Spawned(spawn))

    def _row(self, groups: dict[Member, list[bytes]], target: str | Member) -> list[bytes]:
        """The messages that leave for a target; those to a name that nobody has resolved wait."""
        if isinstance(target, Member):
            # It has sent us something, so all that was begun before its birth is captured here. What waits
            # for the name was sent before, unless the name may come to mean somebody else.
            if target.name in self.unresolved and not self.liaison.is_spawning(target.name):
                self.release_waiting(target.name, target)
            return groups.setdefault(target, [])
        member = self.peers.members.get(target)
        if member is not None and target not in self.unresolved:
            return groups.setdefault(member, [])
        self.liaison.resolve(target)
        return self.unresolved.setdefault(target, [])

    def release_waiting(self, name: str, member: Member) -> None:
        """A name was resolved: what waited for it leaves."""
        self.peers.members[name] = member
        messages = self.unresolved.pop(name, None)
        if messages:
            self.feed(Released(member, messages))

    def undeliverable(self, name: str, messages: Sequence[bytes], error: bytes) -> None:
        """Nobody will ever take these: questions are answered with `error`, tells are dead letters."""
        for message in messages:
            for kind, number, detail, _packed in decode_frame(message):
                if kind in (ASK, CHASE):
                    self.local_answer(number, error)
                elif kind == TELL:
                    self.desk.dead_letters.append([*self.me, 0, kind, f"{name}.{detail}"])
                    if self.liaison.undelivered.setdefault(name, True):
                        # Said once, until somebody has the name: it may go on for long.
                        self.liaison.undelivered[name] = False
                        self.liaison.say("undelivered", name=name, method=detail)
                if self.tainted:
                    return
