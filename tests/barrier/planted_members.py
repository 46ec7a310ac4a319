"""Subtle bugs of births and departures; see `planted`, to whose table they are added."""

from __future__ import annotations

from typing import Any

from cutline.barrier import commit, cut
from cutline.barrier.actions import Capture, Heed
from cutline.barrier.channel import Outgoing
from cutline.barrier.commit import GlobalCommit
from cutline.barrier.endpoint import Endpoint
from cutline.barrier.messages import Member

from .planted import PLANTED, UNPROVED, Patch, check_off, plant

__all__ = ("PLANTED", "UNPROVED", "check_off")


@plant("a spawn is not in the outbox", unproved=True)
def _spawn_forgotten(patch: Patch) -> None:
    real = Endpoint._at_boundary

    def at_boundary(self: Endpoint, event: Any) -> list[Any]:
        return [
            action._replace(channels=action.channels._replace(spawns=()))
            if isinstance(action, Capture)
            else action
            for action in real(self, event)
        ]

    patch.setattr(Endpoint, "_at_boundary", at_boundary)


@plant("a newborn is used before all that was begun before its birth is captured", unproved=True)
def _heeded_early(patch: Patch) -> None:
    real = Endpoint._told

    def told(self: Endpoint, event: Any) -> list[Any]:
        actions = real(self, event)
        if self._words and self._words[-1] is event.word:
            actions.append(Heed(self._words.pop()))
        return actions

    patch.setattr(Endpoint, "_told", told)


@plant("a channel is joined by name instead of incarnation")
def _by_name(patch: Patch) -> None:
    real_released, real_receiver = Endpoint._released, Endpoint._receiver

    def known(ends: Any, peer: Member) -> Member:
        return next((each for each in ends if each.name == peer.name), peer)

    patch.setattr(
        Endpoint,
        "_released",
        lambda self, event: real_released(self, event._replace(peer=known(self.outgoing, event.peer))),
    )
    patch.setattr(Endpoint, "_receiver", lambda self, peer: real_receiver(self, known(self.incoming, peer)))


@plant("who departs goes on taking frames")
def _takes_on(patch: Patch) -> None:
    real = Endpoint._frame_arrived

    def frame_arrived(self: Endpoint, event: Any) -> list[Any]:
        departure, self.departure = self.departure, None
        try:
            return real(self, event)
        finally:
            self.departure = departure

    patch.setattr(Endpoint, "_frame_arrived", frame_arrived)


@plant("who leaves does not wait until what it sent is released")
def _leaves_early(patch: Patch) -> None:
    patch.setattr(Endpoint, "_is_drained", lambda self: not (self.order or self.spawns or self.snapshot.full))


@plant("who leaves does not wait for the fate of what it has captured")
def _leaves_open(patch: Patch) -> None:
    real = Endpoint._is_drained

    def is_drained(self: Endpoint) -> bool:
        full, self.snapshot.full = self.snapshot.full, {}
        try:
            return real(self)
        finally:
            self.snapshot.full = full

    patch.setattr(Endpoint, "_is_drained", is_drained)


@plant("what one that left has not taken is counted from the last ack", unproved=True)
def _from_the_ack(patch: Patch) -> None:
    real = Outgoing.after
    patch.setattr(Outgoing, "after", lambda self, last: real(self, self.released))


@plant("last claims are forgotten while an older checkpoint is open")
def _forgotten_early(patch: Patch) -> None:
    real = GlobalCommit.handle

    def handle(self: GlobalCommit, event: Any) -> list[Any]:
        if not isinstance(event, commit.RowDecided):
            return real(self, event)
        older = {n: state for n, state in self._open.items() if n < event.checkpoint}
        for n in older:
            del self._open[n]
        try:
            return real(self, event)
        finally:
            self._open = {**older, **self._open}

    patch.setattr(GlobalCommit, "handle", handle)


@plant("a spawn that is in an outbox does not keep who left from being forgotten")
def _spawn_unnamed(patch: Patch) -> None:
    real = cut.named
    patch.setattr(
        commit,
        "named",
        lambda claims, departed: real({m: c._replace(spawns=()) for m, c in claims.items()}, departed),
    )
