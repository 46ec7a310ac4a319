"""How two connections become a link: the head that each begins with, and what stands for them until then."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable
from typing import NamedTuple

from cutline.errors import RefusedOption

from .addresses import Reservation, reserve
from .link_stream import StreamLink

__all__ = (
    "Arrival",
    "HEAD_BYTES",
    "Head",
    "LANES",
    "NO",
    "NOBODY",
    "Pair",
    "YES",
    "is_vacant",
    "listen_on",
    "make_head",
    "open_head",
)

_MAGIC = b"cutline\x01"
_TOKEN = 32
HEAD_BYTES = len(_MAGIC) + _TOKEN + 1 + 16
YES, NO = b"\x01", b"\x00"
LANES = {b"d": "data", b"c": "control"}
NOBODY = (ConnectionRefusedError, FileNotFoundError, NotADirectoryError)


class Head(NamedTuple):
    """What a head says: a lane's name ("" for none that there is), and what ties it to the other."""

    lane: str
    tie: bytes


def make_head(token: bytes, lane: bytes, tie: bytes) -> bytes:
    """The first bytes of a connection; `token` is the digest of the secret."""
    return _MAGIC + token + lane + tie


def open_head(raw: bytes, token: bytes) -> Head | None:
    """What a head of HEAD_BYTES says; None, and nothing else is looked at, if the token is another."""
    if not hmac.compare_digest(raw[len(_MAGIC) :][:_TOKEN], token) or not raw.startswith(_MAGIC):
        return None
    return Head(LANES.get(raw[-17:-16], ""), raw[-16:])


class Pair:
    """The two connections of a link that does not stand yet."""

    def __init__(self, link: StreamLink) -> None:
        self.link = link
        self.greetings: dict[str, bytes] = {}
        self.refused: Callable[[str], None] = lambda _reason: None


class Arrival:
    """A connection that has not shown who it is."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.head = b""


def is_vacant(path: str) -> bool:
    """Whether the operating system says that nobody listens there."""
    try:
        with socket.socket(socket.AF_UNIX) as trial:
            trial.setblocking(False)
            trial.connect(path)
    except OSError as error:
        # Out of descriptors, say: then it said nothing.
        return isinstance(error, NOBODY)
    return False


def listen_on(listen: str, backlog: int) -> tuple[socket.socket, Reservation]:
    """A listener at ``unix:/path`` or ``unix:``, and what it holds in the file system.

    Raises PortInUse, ConnectionRefused, RefusedOption.
    """
    if not listen.startswith("unix:"):
        raise RefusedOption(f"address {listen!r}: Unix sockets have addresses of the form 'unix:/path'")
    reservation = reserve(listen)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(reservation.address.removeprefix("unix:"))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise reservation.failure(str(error)) from error
    listener.setblocking(False)
    return listener, reservation
