"""One end of a gRPC link: two lanes, each a stream with a writer and a reader in the gRPC thread.

*Sending.* A lane is idle or owned (`armed`) by one thread, and only the owner takes from the outbox or writes
to the stream. A sender appends its payload; if the lane is idle it claims it and either passes it on to the
writer in the gRPC thread (one wake-up per burst) or, for a small payload, begins the write itself. That
spares a change of threads in each direction, a third of a round trip: gRPC lets an operation begin in any
thread, and its completion still comes to the gRPC thread. It costs the sender 60 us instead of 10, so only
the first of several payloads (markers on all channels) goes that way, whatever the link. An owner gives the
lane up by clearing `armed` and then looking at the outbox once more, a sender appends and then looks at
`armed`: no payload is left behind.

*Ends.* A lane ended on purpose says BYE in band, so a broken lane is never taken for a closed one. When
one lane ends, the other gets a moment to deliver what its socket already holds.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from .grpc_thread import grpc
from .lanes import Outbox, Reassembler, WireError
from .transport import (
    CLOSED_BY_PEER,
    CLOSED_HERE,
    FLUSHING,
    HIGH_WATER,
    LOW_WATER,
    Drained,
    PacketIn,
    Post,
)

_log = logging.getLogger(__name__)

__all__ = ("Broken", "Carrier", "GrpcLink", "Lane", "status_text")

AT_ONCE = 32 * 1024  # bytes: payloads up to here are written by the sender if the lane is idle
BURST = 0.0001  # seconds: sends that follow each other faster, on whatever links, are left to the writers
LAST_WORDS = 0.02  # seconds the other lane gets when one has broken


class Carrier(Protocol):
    """What a link needs of its transport."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def post(self) -> Post: ...

    last_send: float  # when a lane of this transport was last made to move

    @property
    def writes_at_once(self) -> bool:
        """Whether a sender's thread may begin a write."""

    def inside(self) -> bool:
        """True in the gRPC thread."""

    def soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """Run something in the gRPC thread."""

    def wake(self, lane: Lane) -> None:
        """A lane has something to send."""


class Broken(Exception):
    """A lane ended without BYE; the text says why."""


class Lane:
    """One stream of a link, and what waits for it. ``stream`` is a client call or a servicer's context:
    both have ``read`` and ``write``, and take one write at a time."""

    __slots__ = (
        "_begun",
        "_idle",
        "_lock",
        "armed",
        "closing",
        "control",
        "link",
        "outbox",
        "stream",
    )

    def __init__(self, link: GrpcLink, control: bool) -> None:
        self.link = link
        self.control = control
        self.outbox = Outbox()
        self.stream: Any = None
        self.armed = True  # owned by the writer, which does not run yet
        self.closing = False
        self._lock = threading.Lock()
        self._idle: asyncio.Future[None] | None = None
        self._begun: Coroutine[Any, Any, None] | None = None  # a write that a sender began

    def append(self, payload: bytes) -> None:
        """In any thread: queue a payload and see to it that it goes out."""
        self.outbox.append(payload)
        if self.armed or not self._claim():
            return  # the owner looks at the outbox once more before it lets go
        transport = self.link.transport
        quiet = perf_counter() - transport.last_send > BURST
        if quiet and len(payload) <= AT_ONCE and transport.writes_at_once and not transport.inside():
            self._begin_write()
        else:
            transport.wake(self)
        transport.last_send = perf_counter()

    def end(self) -> None:
        """In the gRPC thread: let the lane say BYE when all has gone out."""
        self.closing = True
        if self._claim():
            self.wake()

    def wake(self) -> None:
        """In the gRPC thread, by the owner: the writer owns the lane from now on."""
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _claim(self) -> bool:
        """True for the one thread that owns an idle lane from now on."""
        with self._lock:
            idle, self.armed = not self.armed, True
            return idle

    def _let_go(self) -> bool:
        """By the owner: give the lane up. False if there is more to do and the caller still owns it."""
        self.armed = False
        return not ((self.outbox or self.closing) and self._claim())

    def _begin_write(self) -> None:
        """In the thread of a sender that owns the lane."""
        if not self.outbox:  # somebody else's write took this payload along
            if not self._let_go():
                self.link.transport.wake(self)
            return
        try:
            message, size = self.outbox.take()
            self._begun = self.stream.write(message)
            self._advance(size)
        except BaseException:  # an exception that a signal handler threw in here; the lane is in pieces
            self.link.transport.soon(self.link.abort)
            raise

    def _advance(self, size: int, _ended: object = None) -> None:
        """Run the begun write as far as it goes: what a task does, first in the sender's thread."""
        transport = self.link.transport
        assert self._begun is not None
        try:
            future = self._begun.send(None)
        except StopIteration:
            self._begun = None
            self.link.handed_over(size)
            if not transport.inside():
                transport.wake(self)
            elif not self._let_go():
                self.wake()
        except Exception as error:
            self._begun = None
            _log.debug("%r: a write failed: %s", self.link, error)
            transport.soon(self.link.abort)
        else:
            future.add_done_callback(partial(self._advance, size))
            if future.done():  # then the callback was put into the loop without waking it
                transport.soon(_nothing)

    async def write_all(self) -> None:
        """Hand over what comes until the lane is closed here; then say BYE."""
        outbox, link = self.outbox, self.link
        write = self.stream.write
        while True:
            while outbox:
                message, size = outbox.take()
                await write(message)
                link.handed_over(size)
            if self.closing:
                await write(outbox.farewell())
                return
            self._idle = link.transport.loop.create_future()
            if self._let_go():
                await self._idle

    async def read_all(self) -> None:
        """Post what arrives. Returns after the peer's BYE, raises Broken or WireError otherwise."""
        reassembler = Reassembler()
        read, link, control = self.stream.read, self.link, self.control
        post = link.transport.post
        while not reassembler.ended:
            message = await read()
            if message is grpc.aio.EOF:
                raise Broken("the connection broke")
            for payload in reassembler.feed(message):
                if not link.closed:
                    post(PacketIn(link, payload, control))


class GrpcLink:
    """See `cutline.participant.transport.Link`."""

    def __init__(self, transport: Carrier, key: object, outbound: bool) -> None:
        self.transport = transport
        self.key = key
        self.outbound = outbound
        self.greeting = b""
        self.closed = False  # nothing is accepted or posted any more
        self.data = Lane(self, control=False)
        self.control = Lane(self, control=True)
        self._lock = threading.Lock()
        self._accepted = 0
        self._handed_over = 0
        self._high = False
        self._writers: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<GrpcLink {'to' if self.outbound else 'from'} {self.key!r} at {id(self):#x}>"

    @property
    def backlog(self) -> int:
        return self._accepted - self._handed_over

    def send(self, payload: bytes) -> None:
        self._send(self.data, payload)

    def send_control(self, payload: bytes) -> None:
        self._send(self.control, payload)

    def _send(self, lane: Lane, payload: bytes) -> None:
        if self.closed:
            return
        with self._lock:
            self._accepted += len(payload)
            if self._accepted - self._handed_over > HIGH_WATER:
                self._high = True
        lane.append(payload)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.transport.soon(self.end)

    def end(self) -> None:
        """In the gRPC thread: let both writers finish."""
        self.closed = True
        self.data.end()
        self.control.end()

    def abort(self) -> None:
        """In the gRPC thread: a write failed outside the writers; the link cannot go on."""
        for task in self._writers:
            task.cancel()

    def handed_over(self, size: int) -> None:
        self._handed_over += size
        if self._high and not self.closed and self._accepted - self._handed_over <= LOW_WATER:
            self._high = False
            self.transport.post(Drained(self))

    async def run(self) -> str:
        """From up to down; returns the reason. Both lanes have streams and have greeted."""
        lanes = (self.data, self.control)
        readers = {asyncio.ensure_future(lane.read_all()) for lane in lanes}
        writers = self._writers = {asyncio.ensure_future(lane.write_all()) for lane in lanes}
        try:
            done, _ = await asyncio.wait(readers | writers, return_when=asyncio.FIRST_COMPLETED)
            reason = _reason_of(done)
            if self.closed and not reason:
                await asyncio.wait(writers, timeout=FLUSHING)
                if self.outbound:
                    # Cancelling a call throws away what the acceptor has not read yet: let it end first.
                    await asyncio.wait(readers, timeout=FLUSHING)
                return CLOSED_HERE
            # The other lane may hold last words, and after a BYE it has a BYE of its own.
            read, _ = await asyncio.wait(readers, timeout=LAST_WORDS if reason else FLUSHING)
            return _reason_of(read) or reason or CLOSED_BY_PEER
        finally:
            self.closed = True
            tasks = readers | writers
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._writers = set()  # their tracebacks hold the streams, and these the sockets


def _nothing() -> None:
    """Run in the loop to make it look at its callbacks."""


def _reason_of(done: Iterable[asyncio.Future[None]]) -> str:
    """Why a lane ended; "" if on purpose."""
    for task in done:
        if task.cancelled():
            return "the connection broke: a write failed"
        error = task.exception()
        if error is None:
            continue
        if isinstance(error, WireError):
            return f"garbage from the peer: {error}"
        if isinstance(error, grpc.aio.AioRpcError):
            return f"the connection broke: {status_text(error)}"
        return f"the connection broke: {error}" if not isinstance(error, Broken) else str(error)
    return ""


def status_text(error: Any) -> str:
    return f"{error.code().name}: {error.details()}"
