"""One end of a link over Unix sockets: two lanes, each a connection with whoever sends as its writer.

*Sending.* A payload goes into the lane's outbox; then whoever gets the lane's lock, the sender or the I/O
thread, writes what is there until all is out or the socket is full. The rest is the I/O thread's, when the
socket has room again. A sender that does not get the lock leaves its payload to the one that has it, who
looks at the outbox once more after letting go. So a small payload is on its way when `send` returns, without
a change of threads. Large ones, and those that follow each other fast, are left to the I/O thread, which puts
many into a message: the handlers that send them go on meanwhile.

*Wire.* A message is a 4-byte little-endian length and a row of records (lanes.py).

*Ends.* A lane ended on purpose says BYE in band, so a broken lane is never taken for a closed one.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from .lanes import Outbox, Reassembler, WireError
from .transport import CHUNK, HIGH_WATER, LOW_WATER, Drained, PacketIn, Post

__all__ = ("AT_ONCE", "BURST", "Carrier", "Lane", "LENGTH", "LONGEST", "StreamLink")

LENGTH = struct.Struct("<I")
LONGEST = 2 * CHUNK  # bytes: no message of ours is longer
# Bytes asked for at once. The memory for many is had from the operating system each time, and given back for
# the few that came: that takes longer than all else that a question costs its receiver's socket.
_READ_FEW, _READ_MANY = 16 * 1024, 256 * 1024
AT_ONCE = 32 * 1024  # bytes: payloads up to here are written by their sender
BURST = 0.0001  # seconds: sends that follow each other faster are left to the I/O thread, many to a message


class Carrier(Protocol):
    """What a link needs of its transport."""

    @property
    def post(self) -> Post: ...

    last_send: float  # when something was last sent, on any link

    def soon(self, call: Callable[[], None]) -> None:
        """Run something in the I/O thread."""

    def watch(self, lane: Lane) -> None:
        """In the I/O thread: look at the lane's socket for what the lane now waits for."""

    def end(self, link: StreamLink) -> None:
        """In the I/O thread: the link was closed here; let it say so."""

    def settle(self, link: StreamLink) -> None:
        """In the I/O thread: a lane has come to an end in one direction."""


class Lane:
    """One connection of a link, and what waits for it."""

    __slots__ = (
        "_lock",
        "_part",
        "_reach",
        "_rest",
        "_size",
        "closing",
        "dead",
        "full",
        "has_more",
        "left",
        "link",
        "lost",
        "name",
        "outbox",
        "reading",
        "reassembler",
        "said",
        "socket",
    )

    def __init__(self, link: StreamLink, name: str) -> None:
        self.link = link
        self.name = name
        self.outbox = Outbox()
        self.socket: socket.socket | None = None
        self.reassembler = Reassembler()
        self.closing = False
        self.said = False  # BYE has gone out
        self.full = False  # the socket takes no more; the I/O thread waits for room
        self.left = False  # the I/O thread was asked to flush
        self.lost = False  # nothing more can go out
        self.dead = ""  # why nothing more comes
        # Whoever holds it reads and posts what was read: attendance.py.
        self.reading = threading.Lock()
        self._lock = threading.Lock()
        self._rest: memoryview | None = None
        self._size = 0
        self._part = b""
        self._reach = _READ_FEW
        self.has_more = False  # the last read brought all that was asked for

    @property
    def control(self) -> bool:
        return self.name == "control"

    # -- out -----------------------------------------------------------------------------------------

    def say(self, raw: bytes) -> None:
        """In the I/O thread, before the link stands: bytes that are no records."""
        with self._lock:
            held = b"" if self._rest is None else bytes(self._rest)
            self._rest = memoryview(held + raw)
            self._write()

    def append(self, payload: bytes) -> None:
        """In any thread: queue a payload and see to it that it goes out."""
        self.outbox.append(payload)
        transport = self.link.transport
        now = perf_counter()
        quiet, transport.last_send = now - transport.last_send > BURST, now
        if quiet and len(payload) <= AT_ONCE:
            self.flush()
        elif not self.left:
            self.left = True
            transport.soon(self._flush_left)

    def _flush_left(self) -> None:
        # Cleared first: what is appended from here on is either seen now or left anew.
        self.left = False
        self.flush()

    def flush(self) -> None:
        """Writes what there is, unless somebody does already, or the socket is full."""
        while (self.outbox or self.closing) and not (self.full or self.lost or self.said):
            if not self._lock.acquire(blocking=False):
                return
            try:
                self._write()
            finally:
                self._lock.release()

    def has_room(self) -> None:
        """In the I/O thread: the socket takes something again."""
        with self._lock:
            self.full = False
            self._write()
        self.flush()

    def _write(self) -> None:
        """By whoever has the lock."""
        while self.socket is not None and not (self.full or self.lost):
            if self._rest is None and not self._next():
                return
            assert self._rest is not None
            try:
                sent = self.socket.send(self._rest)
            except BlockingIOError:
                sent = 0
            except OSError:
                # The peer hung up. What it said before is still to be read, and the end of it.
                self.lost = True
                self.link.transport.soon(self._settle)
                return
            if sent == len(self._rest):
                self._rest = None
                self.link.handed_over(self._size)
                self._size = 0
            else:
                self._rest = self._rest[sent:]
                self.full = True
                self.link.transport.soon(self._watch)

    def _next(self) -> bool:
        if self.said:
            # A sender that was faster than `close` came too late all the same: nothing follows a BYE.
            return False
        if self.outbox:
            message, self._size = self.outbox.take()
        elif self.closing:
            message, self.said = self.outbox.farewell(), True
        else:
            return False
        self._rest = memoryview(LENGTH.pack(len(message)) + message)
        return True

    @property
    def is_flushed(self) -> bool:
        """Whether all has gone out, BYE included, or nothing more can."""
        return self.lost or (self.said and self._rest is None)

    def hang_up(self) -> None:
        """In the I/O thread: closes the connection, when nobody writes to it or reads from it."""
        with self.reading, self._lock:
            self.lost = True
            if self.socket is not None:
                self.socket.close()

    def _watch(self) -> None:
        self.link.transport.watch(self)

    def _settle(self) -> None:
        self.link.transport.settle(self.link)

    # -- in, by whoever reads ------------------------------------------------------------------------

    def receive(self) -> None:
        """Reads what has come to a standing link, and posts it; `is_over` tells whether it was the last."""
        with self.reading:
            self.has_more = False
            # Two were woken, and the other one has read the end.
            if self.is_over:
                return
            try:
                messages = self.read()
                if messages:
                    self.take(messages)
            except WireError as error:
                text = str(error)
                self.dead = text if text.startswith("the connection") else f"garbage from the peer: {text}"

    def read(self) -> list[bytes] | None:
        """The messages that have come; None if the connection has ended."""
        assert self.socket is not None
        try:
            came = self.socket.recv(self._reach)
        except BlockingIOError:
            return []
        except OSError as error:
            self.dead = self.dead or f"the connection broke: {error.strerror}"
            return None
        if not came:
            self.dead = self.dead or "the connection broke"
            return None
        self.has_more = len(came) == self._reach
        self._reach = _READ_FEW if len(came) < _READ_FEW else _READ_MANY
        return self.cut(self._part + came if self._part else came)

    def cut(self, came: bytes) -> list[bytes]:
        """Whole messages out of bytes; the rest waits. Raises WireError for what no message is."""
        messages = []
        at, total = 0, len(came)
        while total - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(came, at)
            if length > LONGEST:
                raise WireError(f"the connection broke: a message of {length} bytes, longer than any of ours")
            stop = at + LENGTH.size + length
            if stop > total:
                break
            messages.append(came[at + LENGTH.size : stop])
            at = stop
        self._part = came[at:] if at < total else b""
        return messages

    def take(self, messages: list[bytes]) -> None:
        """Posts what the messages hold. Raises WireError."""
        link, control, post = self.link, self.control, self.link.transport.post
        for message in messages:
            for payload in self.reassembler.feed(message):
                if not link.closed:
                    post(PacketIn(link, payload, control))

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes on it."""
        return bool(self.dead) or self.reassembler.ended


class StreamLink:
    """See `cutline.participant.transport.Link`."""

    def __init__(self, transport: Carrier, key: object, outbound: bool) -> None:
        self.transport = transport
        self.key = key
        self.outbound = outbound
        self.greeting = b""
        self.closed = False  # nothing is accepted or posted any more
        self.data = Lane(self, "data")
        self.control = Lane(self, "control")
        self.early: list[tuple[Lane, list[bytes]]] = []  # what came along with greetings
        self._lock = threading.Lock()
        self._accepted = 0
        self._handed_over = 0
        self._high = False

    def __repr__(self) -> str:
        return f"<StreamLink {'to' if self.outbound else 'from'} {self.key!r} at {id(self):#x}>"

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        return self.data, self.control

    @property
    def backlog(self) -> int:
        return self._accepted - self._handed_over

    def send(self, payload: bytes) -> None:
        self._send(self.data, payload)

    def send_control(self, payload: bytes) -> None:
        self._send(self.control, payload)

    def _send(self, lane: Lane, payload: bytes) -> None:
        with self._lock:
            if self.closed:
                return
            self._accepted += len(payload)
            if self._accepted - self._handed_over > HIGH_WATER:
                self._high = True
        lane.append(payload)

    def close(self) -> None:
        if self.shut():
            self.transport.soon(lambda: self.transport.end(self))

    def shut(self) -> bool:
        """From here on nothing is accepted or posted; whether it was open."""
        with self._lock:
            was, self.closed = self.closed, True
            return not was

    def handed_over(self, size: int) -> None:
        """So many bytes of payloads are the operating system's."""
        with self._lock:
            self._handed_over += size
            if self._high and not self.closed and self._accepted - self._handed_over <= LOW_WATER:
                self._high = False
                self.transport.post(Drained(self))
