"""What moves bytes between processes, seen from the one thread that owns a participant's state.

A *transport* listens at an address, dials others, and tells what happened by calling ``post(event)``
from a thread of its own. ``post`` must only put the event somewhere and return: the transport's reader
never waits for whoever consumes the events (RULES 24); memory is bounded by the credit of the channels
above. A transport knows no participants, epochs or frames; payloads are opaque.

A *link* is one duplex connection with two lanes, ``data`` and ``control``, on two separate connections,
so that a control payload overtakes any amount of data that was sent before it. On each lane payloads
arrive in order, whole, at most once. A link that breaks may have lost any suffix of what was sent on
either lane; it never comes back: dial again, and let the channels above retransmit.

The life of a link, in events::

    connect(address, greeting, key) --> LinkUp(link, their greeting, key) --> PacketIn* --> LinkDown
                                    \\-> LinkRefused(key, reason, gone)
    (somebody dials)                --> LinkUp(link, their greeting, None) --> PacketIn* --> LinkDown

Every ``LinkUp`` is followed by exactly one ``LinkDown``, also when this side closed the link, and no
event of a link comes after its ``LinkDown``. Silence is not death: a peer that is stopped or busy keeps
its link; ``LinkDown`` means that the operating system or the peer said so (RULES 23).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from .attendance import Attendance

__all__ = (
    "CHUNK",
    "CLOSED_BY_PEER",
    "CLOSED_HERE",
    "DIALING",
    "FLUSHING",
    "HIGH_WATER",
    "LOW_WATER",
    "PAIRING",
    "WRONG_TOKEN",
    "Drained",
    "Event",
    "Link",
    "LinkDown",
    "LinkRefused",
    "LinkUp",
    "PacketIn",
    "Post",
    "Transport",
)

CHUNK = 256 * 1024
"""Bytes: the most that one piece of a payload takes on the wire (RULES 24)."""

HIGH_WATER = 1024 * 1024
LOW_WATER = 256 * 1024
"""Bytes: `Drained` follows when a backlog that had passed HIGH_WATER has fallen to LOW_WATER."""

PAIRING = 10.0
"""Seconds that an acceptor waits for both lanes and the greetings."""

DIALING = 20.0
"""Seconds until a dial that nobody answers is refused."""

FLUSHING = 1.0
"""Seconds that a closed link may take to hand over what it had accepted."""

WRONG_TOKEN = "wrong token"
CLOSED_HERE = "closed here"
CLOSED_BY_PEER = "closed by peer"
"""Reasons that callers compare; every other reason is text for people."""


class Link(Protocol):
    """One duplex connection. All methods may be called from any thread, the transport's own included."""

    @property
    def greeting(self) -> bytes:
        """What the peer said first."""

    @property
    def outbound(self) -> bool:
        """True if this side dialed."""

    @property
    def key(self) -> object:
        """What `connect` was given; None on links that somebody else dialed."""

    @property
    def backlog(self) -> int:
        """Bytes accepted by `send` and `send_control` and not yet handed to the wire."""

    def send(self, payload: bytes) -> None:
        """Queue a payload on the data lane. Never blocks; on a link that is down it does nothing."""

    def send_control(self, payload: bytes) -> None:
        """Queue a payload on the control lane, which never waits behind data."""

    def close(self) -> None:
        """Hand over what was accepted (for a second at most), then end the link. Idempotent."""


class Transport(Protocol):
    """A listener and a dialer. See the module's head for the order of events."""

    @property
    def attendance(self) -> Attendance | None:
        """Where the consumer of the events may wait and read, once started; None: it only waits."""

    def start(self) -> str:
        """Begin; returns the address others can dial, "" if this transport does not listen.

        Raises PortInUse if the address is taken, ConnectionRefused if it cannot be listened on.
        """

    def connect(self, address: str, greeting: bytes, key: object) -> None:
        """Dial; `LinkUp` or `LinkRefused` with the same key follows."""

    def close(self) -> None:
        """End every link and the listener. No event is posted after it has returned. Idempotent."""


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Both lanes stand and both sides have greeted."""

    link: Link
    greeting: bytes
    key: object


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """A dial that came to nothing. ``gone``: the operating system says that nobody listens there."""

    key: object
    reason: str
    gone: bool


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The end of a link; the last event that names it."""

    link: Link
    reason: str


@dataclass(frozen=True, slots=True)
class PacketIn:
    """One whole payload."""

    link: Link
    payload: bytes
    control: bool


@dataclass(frozen=True, slots=True)
class Drained:
    """The backlog of a link had passed HIGH_WATER and has fallen to LOW_WATER."""

    link: Link


Event: TypeAlias = LinkUp | LinkRefused | LinkDown | PacketIn | Drained
Post: TypeAlias = Callable[[Event], None]
