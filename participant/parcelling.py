"""Runners and desks whose large arguments may travel as parcels; see `cutline.participant.parcels`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgpack

from cutline.barrier import Member
from cutline.barrier.actions import EndpointAction, SendFrame
from cutline.storage.image import ImageRef

from .desk import Desk
from .driver import DriverRunner
from .emitting import Emitting
from .messages import pack_arguments
from .parcels import Parcel, Parcels, is_parcel_packet
from .pickling import Apart
from .setup import Setup
from .transport import PacketIn

__all__ = ("ParcelDesk", "ParcelDriver", "Parcelling")


class ParcelDesk(Desk):
    """A desk that makes parcels of large arguments and opens those that come."""

    parcels: Parcels

    def handle(self, sender: Member, message: list[Any]) -> None:
        packed = message[3]
        if type(packed) is msgpack.ExtType:
            message = [*message[:3], Apart(self.parcels.open(packed.data))]
        super().handle(sender, message)

    def _begin(self, coroutine: Any, sender: Member | None, question: int, method: str, packed: Any) -> None:
        # It may be suspended, and then is in images with the bytes that it can be run again from.
        arguments = packed.joined() if type(packed) is Apart else packed
        super()._begin(coroutine, sender, question, method, arguments)

    def _packed(self, target: str, method: str, args: Any, kwargs: Any) -> Any:
        where = f"arguments of {target}.{method}"
        # What is sent to oneself is never in a frame that travels.
        apart = self.parcels.minimum and target != self.name
        join = partial(self.parcels.join, compared=self.active is not None) if apart else None
        packed = pack_arguments(args, kwargs, participant=self.name, where=where, join=join)
        if type(packed) is Parcel:
            self.parcels.note(packed)
        return packed


class Parcelling(Emitting):
    """A runner that sends parcels ahead of their frames, and takes those that come."""

    desk: ParcelDesk
    desk_kind = ParcelDesk

    def __init__(self, setup: Setup, *rest: Any, **named: Any) -> None:
        self.parcels = Parcels(setup.by_reference)
        super().__init__(setup, *rest, **named)

    def _new_desk(self, instance: object) -> None:
        self.parcels.clear()
        super()._new_desk(instance)
        self.desk.parcels = self.parcels

    def release(self, out: list[tuple[str | Member, Any]]) -> None:
        if self.parcels.fresh:
            self.parcels.leaving(message for _, message in out if type(message) is bytes)
        super().release(out)

    def _perform(self, actions: list[EndpointAction]) -> None:
        if self.parcels.out or self.parcels.waiting:
            assert self.endpoint is not None
            self.parcels.sweep(self.endpoint)
            for action in actions:
                if isinstance(action, SendFrame):
                    self._accompany(action)
        super()._perform(actions)

    def _accompany(self, action: SendFrame) -> None:
        link = self.peers.link(action.peer)
        if link is None:
            return
        frame = action.frame
        for packet in self.parcels.accompany(self._stamp(action.peer), frame.last, frame.body):
            link.send(packet)

    def _packet(self, event: PacketIn) -> None:
        if self.parcels.has_broken and event.link in self.parcels.broken:
            # What follows a parcel that was not to be had comes again, on another link.
            return
        if self.endpoint is None or not is_parcel_packet(event.payload):
            super()._packet(event)
        elif not self.parcels.arrived(event.payload, self.me, self.setup.run, self.endpoint):
            self.parcels.broken.add(event.link)
            self.parcels.has_broken = True
            event.link.close()

    def be_restored(self, ref: ImageRef, epoch: int, checkpoint: int, floor: int) -> None:
        super().be_restored(ref, epoch, checkpoint, floor)
        assert self.endpoint is not None
        for peer, sender in self.endpoint.outgoing.items() if self.parcels.out else ():
            for frame in sender.frames:
                self.parcels.kept(peer, frame.last, frame.body)

    def undeliverable(self, name: str, messages: Sequence[bytes], error: bytes) -> None:
        self.parcels.undelivered(messages)
        super().undeliverable(name, messages, error)


class ParcelDriver(Parcelling, DriverRunner):
    """The driver's runner."""

    def minded(self, arguments: Any) -> None:
        if type(arguments) is Parcel:
            self.parcels.note(arguments)
