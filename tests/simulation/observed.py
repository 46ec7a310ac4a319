"""Runners that count the situations a schedule is to meet; they decide nothing and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutline.barrier import Endpoint
from cutline.barrier.actions import Depart, EndpointAction, SendAck
from cutline.barrier.events import EndpointEvent, FrameArrived, Initiated, Leave, MarkerArrived
from cutline.participant.parcelling import ParcelDriver, Parcelling
from cutline.participant.runner import Runner
from cutline.participant.transport import LinkDown

from .world import World

__all__ = ("ObservedDriver", "ObservedRunner")

_BY = {Initiated: "capture by initiate", MarkerArrived: "capture by marker", FrameArrived: "capture by frame"}


class _Observed(Runner):
    world: World
    fenced_before = 0
    # What must never be, if it was seen.
    wrong = ""
    told: Callable[[int, bool], None]
    departed: Callable[[object, int, int], None]

    def feed(self, event: EndpointEvent) -> None:
        endpoint = self.endpoint
        if endpoint is None:
            super().feed(event)
            return
        hits = self.world.hits
        before = endpoint.due
        if isinstance(event, Leave) and endpoint.snapshot.full:
            hits["leave in a snapshot"] += 1
        if isinstance(event, MarkerArrived):
            channel = endpoint.incoming.get(event.stamp.sender)
            received = channel.received if channel is not None else 0
            if any(mark.last > received for mark in event.marks):
                hits["marker before data"] += 1
        if isinstance(event, FrameArrived) and event.stamp.epoch != endpoint.epoch:
            self._feed_foreign(event, endpoint)
        else:
            super().feed(event)
        if not before and endpoint.due and type(event) in _BY:
            hits[_BY[type(event)]] += 1
        if endpoint.fenced > self.fenced_before:
            hits["packet of another epoch or run refused"] += 1
        self.fenced_before = endpoint.fenced

    def _feed_foreign(self, event: FrameArrived, endpoint: Endpoint) -> None:
        refused = endpoint.fenced
        try:
            super().feed(event)
        finally:
            if endpoint.fenced == refused:
                self.wrong = f"takes a frame of another epoch, {event.stamp.epoch}, in {endpoint.epoch}"

    def _take(self, event: Any) -> None:
        if isinstance(event, LinkDown) and self.endpoint is not None and self.phase == "running":
            ends = self.endpoint.outgoing.values()
            if any(end.linked and end.transmitted > end.received for end in ends):
                self.world.hits["link lost with frames under way"] += 1
        super()._take(event)

    def _perform(self, actions: list[EndpointAction]) -> None:
        for action in actions:
            if isinstance(action, SendAck) and 0 <= action.positions.released < action.positions.received:
                self.world.hits["released withheld"] += 1
            elif isinstance(action, Depart):
                self.world.hits["departure"] += 1
                endpoint = self.endpoint
                assert endpoint is not None
                self.departed(self.instance, endpoint.epoch, endpoint.snapshot.newest)
        super()._perform(actions)

    def captured(self, checkpoint: int) -> None:
        super().captured(checkpoint)
        assert self.endpoint is not None
        hits = self.world.hits
        hits["capture"] += 1
        if any(end.frames for end in self.endpoint.incoming.values()):
            hits["capture with a mailbox"] += 1
        if self.desk.calls:
            hits["capture with suspended calls"] += 1
        self.world.note("captures", self.me.name, checkpoint)

    def settled(self, checkpoint: int, committed: bool) -> None:
        super().settled(checkpoint, committed)
        self.told(checkpoint, committed)
        assert self.endpoint is not None
        if not committed and any(n > checkpoint for n in self.endpoint.snapshot.captured):
            self.world.hits["overlap with the older aborted"] += 1


class ObservedRunner(_Observed, Parcelling):
    """A participant's."""


class ObservedDriver(_Observed, ParcelDriver):
    """The driver's."""
