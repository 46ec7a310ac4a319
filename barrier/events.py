"""What may happen to a participant's `Endpoint`: values that a shell makes from packets and handlers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .messages import Frame, Mark, Member, Open, Positions, Spawn, Stamp

__all__ = (
    "Released",
    "Spawned",
    "SpawnAnswered",
    "Told",
    "Leave",
    "Gone",
    "Flush",
    "FrameArrived",
    "MarkerArrived",
    "AckArrived",
    "LinkOpened",
    "LinkLost",
    "Initiated",
    "Settled",
    "AtBoundary",
    "Durable",
    "CaptureFailed",
    "CoordinatorOpened",
    "EndpointEvent",
)


class Released(NamedTuple):
    """A handler reached a boundary; what it sent to `peer` leaves now, in order."""

    peer: Member
    messages: Sequence[bytes]


class Spawned(NamedTuple):
    """A handler reached a boundary; what it spawned is in the outbox from now on."""

    spawn: Spawn


class SpawnAnswered(NamedTuple):
    """The coordinator's word on an own spawn was heeded: born, or never to be. It leaves the outbox."""

    number: int


class Told(NamedTuple):
    """The coordinator's word on who there is, and all ids that were undecided when it was said.

    It is heeded only after they were captured here: whoever uses a name has captured all that was begun
    before its birth (RULES 9).
    """

    epoch: int
    undecided: Sequence[Open]
    newest: int
    committed: int
    word: Any


class Leave(NamedTuple):
    """This participant leaves, and its shell has nothing more to send: it departs when all has drained."""


class Gone(NamedTuple):
    """A peer has left for good, having handled the messages up to `last`: heeded word of the coordinator."""

    peer: Member
    last: int


class Flush(NamedTuple):
    """The shell has nothing more at hand: cut frames, send acks."""


class FrameArrived(NamedTuple):
    """A frame with the marks of its header."""

    stamp: Stamp
    marks: Sequence[Mark]
    committed: int
    frame: Frame


class MarkerArrived(NamedTuple):
    """A marker: the sender's marks, on the control lane, so that it overtakes data."""

    stamp: Stamp
    marks: Sequence[Mark]
    committed: int


class AckArrived(NamedTuple):
    """Positions of the other end of an outgoing channel."""

    stamp: Stamp
    positions: Positions


class LinkOpened(NamedTuple):
    """There is a connection to `peer` (again)."""

    peer: Member


class LinkLost(NamedTuple):
    """There is no connection to `peer` any more."""

    peer: Member


class Initiated(NamedTuple):
    """The coordinator's word: all undecided ids, the newest id begun, the newest committed."""

    epoch: int
    undecided: Sequence[Open]
    newest: int
    committed: int


class Settled(NamedTuple):
    """The coordinator's word on one id: committed or aborted."""

    epoch: int
    checkpoint: int
    committed: bool


class AtBoundary(NamedTuple):
    """No handler runs; whatever is due may be captured now."""


class Durable(NamedTuple):
    """The image of a capture is durable; `image` and `facts` are for the coordinator."""

    checkpoint: int
    image: dict[str, object]
    facts: dict[str, object]


class CaptureFailed(NamedTuple):
    """The capture or its persisting failed; the checkpoint cannot commit."""

    checkpoint: int
    reason: str


class CoordinatorOpened(NamedTuple):
    """A connection to a coordinator (a new one, perhaps): whatever it has not decided is said again."""


EndpointEvent = (
    Released
    | Spawned
    | SpawnAnswered
    | Told
    | Leave
    | Gone
    | Flush
    | FrameArrived
    | MarkerArrived
    | AckArrived
    | LinkOpened
    | LinkLost
    | Initiated
    | Settled
    | AtBoundary
    | Durable
    | CaptureFailed
    | CoordinatorOpened
)
