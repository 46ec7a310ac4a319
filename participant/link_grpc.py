"""One end of a gRPC link: two lanes, each a stream with a writer and a reader in the gRPC thread.

A sender appends to a lane's outbox and wakes the thread once per burst. The order "append, then look at
`armed`" against "clear `armed`, then look at the outbox" makes a lost wake-up impossible without a lock.
The lock of a link guards only the count of accepted bytes among several senders.

A lane ended on purpose says BYE in band, so a broken lane is never taken for a closed one. When one lane
ends, the other gets a moment to deliver what its socket already holds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .grpc_thread import grpc
from .lanes import Outbox, Reassembler, WireError
from .transport import (
    CLOSED_BY_PEER,
    CLOSED_HERE,
    HIGH_WATER,
    LOW_WATER,
    Drained,
    PacketIn,
    Post,
)

__all__ = ("FLUSHING", "Broken", "Carrier", "GrpcLink", "Lane", "status_text")

FLUSHING = 1.0  # seconds a closed link may take to hand over what it had accepted
LAST_WORDS = 0.02  # seconds the other lane gets when one has broken


class Carrier(Protocol):
    """What a link needs of its transport."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def post(self) -> Post: ...

    def soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """Run something in the gRPC thread."""

    def wake(self, lane: Lane) -> None:
        """A lane has something to send."""


class Broken(Exception):
    """A lane ended without BYE; the text says why."""


class Lane:
    """One stream of a link, and what waits for it. ``stream`` is a client call or a servicer's context:
    both have ``read`` and ``write``."""

    __slots__ = ("armed", "closing", "control", "idle", "link", "outbox", "stream")

    def __init__(self, link: GrpcLink, control: bool) -> None:
        self.link = link
        self.control = control
        self.outbox = Outbox()
        self.stream: Any = None
        self.armed = True  # nobody needs to wake a writer that does not run yet
        self.idle: asyncio.Future[None] | None = None
        self.closing = False

    def wake(self) -> None:
        if self.idle is not None and not self.idle.done():
            self.idle.set_result(None)

    async def write_all(self) -> None:
        """Hand over what comes until the lane is closed here; then say BYE."""
        outbox, link = self.outbox, self.link
        write = self.stream.write
        while True:
            if not outbox:
                self.armed = False
                if not outbox:
                    if self.closing:
                        await write(outbox.farewell())
                        return
                    self.idle = link.transport.loop.create_future()
                    await self.idle
                self.armed = True
                continue
            message, size = outbox.take()
            await write(message)
            link.handed_over(size)

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
        lane.outbox.append(payload)
        if not lane.armed:
            lane.armed = True
            self.transport.wake(lane)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.transport.soon(self.end)

    def end(self) -> None:
        """In the gRPC thread: let both writers finish."""
        self.closed = True
        for lane in (self.data, self.control):
            lane.closing = True
            lane.wake()

    def handed_over(self, size: int) -> None:
        self._handed_over += size
        if self._high and self._accepted - self._handed_over <= LOW_WATER:
            self._high = False
            self.transport.post(Drained(self))

    async def run(self) -> str:
        """From up to down; returns the reason. Both lanes have streams and have greeted."""
        lanes = (self.data, self.control)
        readers = {asyncio.ensure_future(lane.read_all()) for lane in lanes}
        writers = {asyncio.ensure_future(lane.write_all()) for lane in lanes}
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
            self.data.outbox.clear()
            self.control.outbox.clear()


def _reason_of(done: Iterable[asyncio.Future[None]]) -> str:
    """Why a lane ended; "" if on purpose."""
    for task in done:
        error = None if task.cancelled() else task.exception()
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
