"""What an `Endpoint` asks its shell to do, in this order; nothing in the list may be left out.

A shell performs `Capture` before it handles any further message, and sends what follows it only after
it. `Report` may only be sent for images that are durable: the endpoint sees to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .messages import ChannelTable, Frame, Mark, Member, Positions, Spawn

__all__ = (
    "SendFrame",
    "SendMarker",
    "SendAck",
    "Capture",
    "Report",
    "Complain",
    "Settle",
    "Dial",
    "AskBirth",
    "Heed",
    "Depart",
    "Undelivered",
    "EndpointAction",
)


class SendFrame(NamedTuple):
    """Put a frame on the data lane to `peer`, with the marks in its header."""

    peer: Member
    marks: Sequence[Mark]
    committed: int
    frame: Frame


class SendMarker(NamedTuple):
    """Put a marker on the control lane to `peer`."""

    peer: Member
    marks: Sequence[Mark]
    committed: int


class SendAck(NamedTuple):
    """Put positions on the control lane to `peer`."""

    peer: Member
    positions: Positions


class Capture(NamedTuple):
    """Capture the state now, relative to `against` (None: everything), together with these channels."""

    checkpoint: int
    full: bool
    against: int | None
    channels: ChannelTable


class Report(NamedTuple):
    """Tell the coordinator: prepared."""

    checkpoint: int
    channels: ChannelTable
    image: dict[str, object]
    facts: dict[str, object]


class Complain(NamedTuple):
    """Tell the coordinator: this checkpoint cannot be prepared here."""

    checkpoint: int
    reason: str


class Settle(NamedTuple):
    """A capture's fate is known: keep it as a base (committed) or forget it."""

    checkpoint: int
    committed: bool


class Dial(NamedTuple):
    """Connect to `peer`: something waits for it."""

    peer: Member


class AskBirth(NamedTuple):
    """Ask the coordinator for a newborn, and again whenever it may not have heard it."""

    spawn: Spawn


class Heed(NamedTuple):
    """Act on what the coordinator said of who there is; nothing that it bears on is left to be captured."""

    word: Any


class Depart(NamedTuple):
    """Tell the coordinator: nothing is left to do here, nothing more is taken; the channels end like this."""

    channels: ChannelTable


class Undelivered(NamedTuple):
    """These messages (bodies of frames, in order) were for somebody who left without taking them."""

    peer: Member
    bodies: Sequence[bytes]


EndpointAction = (
    SendFrame
    | SendMarker
    | SendAck
    | Capture
    | Report
    | Complain
    | Settle
    | Dial
    | AskBirth
    | Heed
    | Depart
    | Undelivered
)
