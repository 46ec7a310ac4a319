"""A driver that leaves a system which goes on without it: it comes to rest, and is captured at rest.

*At rest* it takes no submission, delivers nothing, acks nothing, and has no link to any participant. It rests
before the checkpoint is begun that it is parked with: no frame can reach it any more, so no mark of that
checkpoint can be known at its capture, and its image holds all that it has received. What is captured so
is true of it at every later cut too, since nothing happens to it; the coordinator takes the image as its
answer to each of them (`cutline.coordinator.parting`). Only what everybody has received is behind it: resting
is refused while input is still on its way.

A rollback ends the rest: the state that was settled is not the state any more.
"""

from __future__ import annotations

from typing import Any

from cutline.barrier.actions import Capture
from cutline.barrier.events import AtBoundary, LinkLost
from cutline.storage.image import ImageRef

from .inputs import InputShutter
from .liaison import COORDINATOR
from .parcelling import ParcelDriver
from .persist import Persister
from .transport import LinkUp, PacketIn, Transport

__all__ = ("LeavingDriver", "RESTS")

# The fact of a report that says so.
RESTS = "rests"


class _Shutter(InputShutter):
    """Notes in each report whether the driver was at rest."""

    runner: LeavingDriver

    def capture(self, action: Capture) -> None:
        super().capture(action)
        facts = self.facts.get(action.checkpoint)
        if facts is not None:
            facts[RESTS] = self.runner.resting


class LeavingDriver(ParcelDriver):
    """The driver's runner, which can leave. Everything here runs on its thread."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.resting = False

    def attach(self, transport: Transport, persister: Persister) -> None:
        super().attach(transport, persister)
        self.shutter = _Shutter(self, persister)

    # -- coming to rest --------------------------------------------------------------------

    def try_rest(self) -> str:
        """Comes to rest, or says what is still under way, for people."""
        reason = "" if self.resting else self.unsettled()
        if not reason and not self.resting:
            assert self.endpoint is not None
            self.resting = True
            for peer, links in list(self.peers.links.items()):
                for link in links:
                    link.close()
                del self.peers.links[peer]
                self.feed(LinkLost(peer))
            self.peers.acks.clear()
        return reason

    def unsettled(self) -> str:
        """What keeps this driver from resting; answers that it waits for do not."""
        endpoint = self.endpoint
        if endpoint is None or self.phase != "running" or self.tainted:
            return "the system is being brought back to a checkpoint"
        if endpoint.spawns:
            return f"{', '.join(spawn.name for spawn in endpoint.spawns.values())} is not up yet"
        if self.submissions or self._holds():
            return "input waits for what it follows from"
        if self.unresolved or self.desk.out:
            return f"nobody has said yet where {', '.join(self.unresolved) or 'a receiver'} is"
        behind = [
            peer.name
            for peer, end in endpoint.outgoing.items()
            if peer != self.me and (end.pending or end.received < end.sent)
        ]
        return f"{', '.join(behind)} has not taken all that was sent to it" if behind else ""

    def waits(self) -> dict[str, Any]:
        return {**super().waits(), "still": self.is_still and not self.unsettled()}

    def wake(self) -> None:
        """Goes on as before the rest. Whoever has something to say dials."""
        if self.resting and self.endpoint is not None:
            self.resting = False
            for peer in self.endpoint.pending_dials():
                self.dial(peer)

    def be_restored(self, ref: ImageRef, epoch: int, checkpoint: int, floor: int) -> None:
        self.resting = False
        super().be_restored(ref, epoch, checkpoint, floor)

    # -- at rest ---------------------------------------------------------------------------

    def _has_work(self) -> bool:
        if self.resting:
            return self.phase == "running" and self.endpoint is not None and self.endpoint.due
        return super()._has_work()

    def _until_due(self) -> float:
        # Nothing is done at rest; to be due would only keep it from sleeping.
        return 1.0 if self.resting else super()._until_due()

    def step(self, wait: float) -> None:
        if not self.resting:
            super().step(wait)
            return
        self._take_events(wait)
        self.liaison.tick()
        if self.resting and self.ended is None and self._has_work():
            assert self.endpoint is not None
            self._perform(self.endpoint.handle(AtBoundary()))

    def _take(self, event: Any) -> None:
        if self.resting and isinstance(event, LinkUp) and event.key != COORDINATOR:
            event.link.close()
            if event.key in self.peers.dialing:
                del self.peers.dialing[event.key]
            return
        if self.resting and isinstance(event, PacketIn) and event.link is not self.liaison.link:
            # Not acked, so it comes again on another link.
            return
        super()._take(event)
