"""Links over Unix sockets between the processes of one machine: a fifth of the time that gRPC takes.

A link is two connections, "data" and "control", tied together by a random id. Each begins with a head of
fixed length from the dialer (magic, digest of the token, lane, tie); the acceptor answers with one byte. Then
each side says a greeting, and from then on messages (link_stream.py).

*Before any byte is read.* Of a connection that has just arrived no more is read than the head, and of the
head nothing is looked at before the token's digest was compared in constant time. The socket lies in a folder
that belongs to the user alone.

*Threads.* One per transport, a daemon: it accepts, dials, reads, and writes what a socket did not take from
the sender at once. It never waits for whoever consumes the events. While the consumer has nothing to do, it
reads instead (attendance.py).

*Ends.* A killed process closes its sockets, and the link is down at once. At the exit of this process links
are ended on purpose; a forked child closes what it has inherited, or nobody would see its parent die.
"""

from __future__ import annotations

import atexit
import logging
import os
import selectors
import socket
import threading
import weakref
from collections.abc import Callable
from functools import partial
from time import monotonic

from blake3 import blake3

from cutline.errors import RefusedOption

from .addresses import Reservation, target
from .attendance import Attendance
from .io_loop import IoLoop
from .lane_watch import LaneWatch
from .lanes import WireError
from .link_head import (
    HEAD_BYTES,
    LANES,
    NO,
    NOBODY,
    YES,
    Arrival,
    Pair,
    is_vacant,
    listen_on,
    make_head,
    open_head,
)
from .link_stream import LENGTH, Lane, StreamLink
from .transport import (
    CHUNK,
    CLOSED_BY_PEER,
    CLOSED_HERE,
    DIALING,
    FLUSHING,
    PAIRING,
    WRONG_TOKEN,
    LinkDown,
    LinkRefused,
    LinkUp,
    Post,
)

__all__ = ("SCHEME", "StreamTransport")

_log = logging.getLogger(__name__)

SCHEME = "stream:"
LAST_WORDS = 0.02  # seconds the other lane gets when one has broken
_AGAIN = 0.1  # seconds until a listener that could not take a connection tries again
_BUSY = 0.005  # seconds until a listener whose queue is full is dialed again
_BACKLOG = 512
_living: weakref.WeakSet[StreamTransport] = weakref.WeakSet()


class StreamTransport:
    """See `cutline.participant.transport.Transport`.

    ``listen``: ``unix:/path``, or ``unix:`` (a new private folder), or None to dial out only; the address is
    ``stream:/path``. Everything else as in `GrpcTransport`.
    """

    def __init__(
        self,
        token: str | bytes,
        post: Post,
        listen: str | None,
        name: str,
        greeting: Callable[[], bytes] = bytes,
    ) -> None:
        raw = token.encode() if isinstance(token, str) else token
        if not raw:
            raise ValueError(f"{name}: an empty token would let everybody in")
        self._token = blake3(raw).digest()
        self.post = post
        self.name = name
        self._listen = listen
        self._greeting = greeting
        self._reservation: Reservation | None = None
        self._listener: socket.socket | None = None
        self._loop: IoLoop | None = None
        self._lanes: LaneWatch | None = None
        # By whether they were dialed from here, and the tie: a transport may dial itself.
        self._pairs: dict[tuple[bool, bytes], Pair] = {}
        self._standing: set[StreamLink] = set()
        self._closed = False
        self.last_send = 0.0

    # -- any thread ------------------------------------------------------------------------------------

    def start(self) -> str:
        if self._loop is not None or self._closed:
            raise RuntimeError(f"{self.name}: a transport starts once")
        address = ""
        if self._listen is not None:
            self._listener, self._reservation = listen_on(self._listen, _BACKLOG)
            address = SCHEME + self._reservation.bound(0).removeprefix("unix:")
        self._loop = IoLoop(self.name)
        self._lanes = LaneWatch(self._selector, self._ready, self._given_back)
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        _living.add(self)
        atexit.register(self.close)
        self._loop.start()
        return address

    @property
    def loop(self) -> IoLoop:
        assert self._loop is not None, "start() comes first"
        return self._loop

    @property
    def lanes(self) -> LaneWatch:
        assert self._lanes is not None, "start() comes first"
        return self._lanes

    @property
    def attendance(self) -> Attendance | None:
        return self.lanes.attendance

    @property
    def _selector(self) -> selectors.BaseSelector:
        return self.loop.selector

    def connect(self, address: str, greeting: bytes, key: object) -> None:
        if not address.startswith(SCHEME):
            raise RefusedOption(f"address {address!r} is not of the form '{SCHEME}/path'", address=address)
        target("unix:" + address.removeprefix(SCHEME))
        if len(greeting) > CHUNK:
            raise ValueError(f"{self.name}: a greeting has at most {CHUNK} bytes, not {len(greeting)}")
        if self._closed:
            self.post(LinkRefused(key, CLOSED_HERE, gone=False))
        else:
            self.soon(partial(self._dial, address, greeting, key, monotonic() + DIALING))

    def soon(self, call: Callable[[], None]) -> None:
        """Run something in the I/O thread."""
        self.loop.soon(call)

    def close(self) -> None:
        loop, was_closed, self._closed = self._loop, self._closed, True
        if was_closed or loop is None or loop.pid != os.getpid():
            return
        atexit.unregister(self.close)
        loop.soon(self._shut_down)
        if loop.thread is not threading.current_thread():
            loop.thread.join(2 * FLUSHING + 1.0)
            if loop.thread.is_alive():
                _log.warning("%s: the transport did not end in time; its thread is left behind", self.name)

    def _given_back(self, lane: Lane) -> None:
        self.soon(partial(self._go_on, lane))

    def _go_on(self, lane: Lane) -> None:
        self._ready(lane, selectors.EVENT_READ)
        if lane.has_more:
            self._given_back(lane)

    # -- the I/O thread --------------------------------------------------------------------------------

    def watch(self, lane: Lane) -> None:
        """See `link_stream.Carrier`."""
        # One that has greeted waits for the other lane.
        self.lanes.look(lane, standing=lane.link in self._standing)

    def _ready(self, lane: Lane, mask: int) -> None:
        """A standing lane's socket has something, or room."""
        if mask & selectors.EVENT_READ:
            lane.receive()
            if lane.is_over:
                self._lane_ended(lane)
        self._room(lane, mask)
        if lane.is_flushed:
            self.settle(lane.link)

    def _room(self, lane: Lane, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            lane.has_room()
            self.watch(lane)

    # -- dialing ---------------------------------------------------------------------------------------

    def _dial(self, address: str, greeting: bytes, key: object, deadline: float) -> None:
        if self._closed:
            self.post(LinkRefused(key, CLOSED_HERE, gone=False))
            return
        path = address.removeprefix(SCHEME)
        connections: list[socket.socket] = []
        try:
            for _ in range(2):
                connection = socket.socket(socket.AF_UNIX)
                connections.append(connection)
                connection.setblocking(False)
                connection.connect(path)
        except OSError as error:
            for connection in connections:
                connection.close()
            if isinstance(error, BlockingIOError) and monotonic() < deadline:
                self.loop.later(_BUSY, partial(self._dial, address, greeting, key, deadline))
                return
            vacant = isinstance(error, NOBODY)
            reason = f"nobody listens at {address}" if vacant else f"{address}: {error.strerror}"
            self.post(LinkRefused(key, reason, gone=vacant))
            return
        self._introduce(address, greeting, key, connections)

    def _introduce(
        self, address: str, greeting: bytes, key: object, connections: list[socket.socket]
    ) -> None:
        tie = os.urandom(16)
        pair = self._pairs[True, tie] = Pair(StreamLink(self, key, outbound=True))
        pair.refused = partial(self._tell_refused, address, key)
        for lane, word, connection in zip(pair.link.lanes, LANES, connections, strict=True):
            lane.socket = connection
            lane.say(make_head(self._token, word, tie) + LENGTH.pack(len(greeting)) + greeting)
            self._selector.register(
                connection, selectors.EVENT_READ, partial(self._verdict, pair, (True, tie), lane, address)
            )
        self.loop.later(
            DIALING, partial(self._give_up, (True, tie), f"no answer from {address} within {DIALING:g} s")
        )

    def _tell_refused(self, address: str, key: object, reason: str) -> None:
        """It was dialed; whether its listener has gone since is for the operating system to say."""
        vacant = reason not in (CLOSED_HERE, WRONG_TOKEN) and is_vacant(address.removeprefix(SCHEME))
        self.post(LinkRefused(key, f"nobody listens at {address}" if vacant else reason, gone=vacant))

    def _verdict(self, pair: Pair, tie: tuple[bool, bytes], lane: Lane, address: str, mask: int) -> None:
        """The acceptor's one byte."""
        self._room(lane, mask)
        assert lane.socket is not None
        try:
            said = lane.socket.recv(1)
        except BlockingIOError:
            return
        except OSError as error:
            self._give_up(tie, f"{address}: {error.strerror}")
            return
        if said == NO:
            self._give_up(tie, WRONG_TOKEN)
        elif said != YES:
            self._give_up(
                tie, f"{address}: ended before the greeting" if not said else f"{address}: is no peer"
            )
        else:
            # The own greeting may not have gone out yet.
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if lane.full else 0)
            self._selector.modify(lane.socket, wanted, partial(self._greeted, pair, tie, lane, address))
            self._greeted(pair, tie, lane, address, selectors.EVENT_READ)

    def _give_up(self, tie: tuple[bool, bytes], reason: str) -> None:
        """A pair that did not become a link in time, or at all."""
        pair = self._pairs.pop(tie, None)
        if pair is None:
            return
        for lane in pair.link.lanes:
            self._drop(lane)
        pair.refused(reason)

    def _drop(self, lane: Lane) -> None:
        if lane.socket is None:
            return
        lane.dead = lane.dead or CLOSED_HERE
        if lane.socket.fileno() >= 0:
            self.lanes.forget(lane)
            lane.hang_up()

    # -- accepting -------------------------------------------------------------------------------------

    def _accept(self, _mask: int) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors, say: it waits in the queue, and so does this.
                _log.warning("%s: a connection could not be taken: %s", self.name, error)
                self._selector.unregister(self._listener)
                self.loop.later(_AGAIN, self._listen_again)
                return
            connection.setblocking(False)
            arrival = Arrival(connection)
            self._selector.register(connection, selectors.EVENT_READ, partial(self._head, arrival))
            self.loop.later(PAIRING, partial(self._hang_up, arrival))

    def _listen_again(self) -> None:
        if self._listener is not None and not self._closed:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _hang_up(self, arrival: Arrival) -> None:
        """On a connection that has not shown its head in time, or a wrong one."""
        if len(arrival.head) < HEAD_BYTES:
            arrival.head = b"\0" * HEAD_BYTES
            self._selector.unregister(arrival.connection)
            arrival.connection.close()

    def _head(self, arrival: Arrival, _mask: int) -> None:
        connection = arrival.connection
        try:
            came = connection.recv(HEAD_BYTES - len(arrival.head))
        except BlockingIOError:
            return
        except OSError:
            came = b""
        if not came:
            self._hang_up(arrival)
            return
        arrival.head += came
        if len(arrival.head) < HEAD_BYTES:
            return
        self._selector.unregister(connection)
        head = open_head(arrival.head, self._token)
        if head is None:
            self._refuse(connection)
        else:
            self._admit(connection, *head)

    @staticmethod
    def _refuse(connection: socket.socket) -> None:
        with connection:
            try:
                connection.send(NO)
            except OSError as error:
                _log.debug("whoever was refused is gone: %s", error)

    def _admit(self, connection: socket.socket, name: str, tie: bytes) -> None:
        pair = self._pairs.get((False, tie))
        if pair is None:
            pair = self._pairs[False, tie] = Pair(StreamLink(self, None, outbound=False))
            self.loop.later(PAIRING, partial(self._give_up, (False, tie), ""))
        lane = {"data": pair.link.data, "control": pair.link.control}.get(name)
        if self._closed or lane is None or lane.socket is not None:
            connection.close()
            return
        lane.socket = connection
        greeting = self._greeting()
        lane.say(YES + LENGTH.pack(len(greeting)) + greeting)
        self._selector.register(
            connection, selectors.EVENT_READ, partial(self._greeted, pair, (False, tie), lane, "the dialer")
        )

    # -- a link stands ---------------------------------------------------------------------------------

    def _greeted(self, pair: Pair, tie: tuple[bool, bytes], lane: Lane, whom: str, mask: int) -> None:
        """The peer's first message on one lane; both of them bring the link to life."""
        self._room(lane, mask)
        try:
            messages = lane.read()
        except WireError as error:
            self._give_up(tie, f"{whom}: {error}")
            return
        if messages is None:
            self._give_up(tie, f"{whom}: ended before the greeting")
            return
        if not messages:
            return
        first = messages.pop(0)
        pair.greetings[lane.name] = first
        # Nothing more of this lane before the link stands; what came along waits in the lane.
        self._selector.unregister(lane.socket)  # type: ignore[arg-type]
        lane.link.early.append((lane, messages))
        if len(pair.greetings) == 2:
            del self._pairs[tie]
            self._live(pair)

    def _live(self, pair: Pair) -> None:
        link = pair.link
        link.greeting = pair.greetings["data"]
        self._standing.add(link)
        self.post(LinkUp(link, link.greeting, link.key))
        if self._closed:
            link.shut()
            self.end(link)
        for lane, messages in link.early:
            try:
                lane.take(messages)
            except WireError as error:
                lane.dead = f"garbage from the peer: {error}"
            self.watch(lane)
            lane.flush()
            if lane.is_over:
                self._lane_ended(lane)
        link.early.clear()

    def end(self, link: StreamLink) -> None:
        """See `link_stream.Carrier`."""
        if link not in self._standing:
            return
        for lane in link.lanes:
            lane.closing = True
            lane.flush()
        self.loop.later(FLUSHING, partial(self._down, link, CLOSED_HERE))
        self.settle(link)

    def _lane_ended(self, lane: Lane) -> None:
        """Nothing more comes on a lane of a standing link."""
        link = lane.link
        if link not in self._standing:
            return
        self.watch(lane)
        if not lane.closing:
            # The other lane may hold last words, and after a BYE it has a BYE of its own.
            wait = LAST_WORDS if lane.dead else FLUSHING
            self.loop.later(wait, partial(self._down, link, lane.dead or CLOSED_BY_PEER))
        self.settle(link)

    def settle(self, link: StreamLink) -> None:
        """Takes the link down if there is nothing left to wait for."""
        if link not in self._standing:
            return
        over = all(lane.is_over for lane in link.lanes)
        if all(lane.closing for lane in link.lanes):
            # Whoever dialed waits until the acceptor has read all: it says BYE in its turn.
            if all(lane.is_flushed for lane in link.lanes) and (over or not link.outbound):
                self._down(link, CLOSED_HERE)
        elif over:
            broken = [lane.dead for lane in link.lanes if lane.dead]
            self._down(link, broken[0] if broken else CLOSED_BY_PEER)

    def _down(self, link: StreamLink, reason: str) -> None:
        if link not in self._standing:
            return
        self._standing.discard(link)
        link.shut()
        for lane in link.lanes:
            if not lane.closing:
                lane.closing = True
                lane.flush()
            self._drop(lane)
        self.post(LinkDown(link, reason))

    # -- the end ---------------------------------------------------------------------------------------

    def _shut_down(self) -> None:
        for tie in list(self._pairs):
            self._give_up(tie, CLOSED_HERE)
        if self._listener is not None:
            if self._listener in self._selector.get_map():
                self._selector.unregister(self._listener)
            self._listener.close()
        if self._reservation is not None:
            self._reservation.release()
        for link in list(self._standing):
            link.shut()
            self.end(link)
        self._finish(monotonic() + FLUSHING)

    def _finish(self, deadline: float) -> None:
        if self._standing and monotonic() < deadline:
            self.loop.later(0.005, partial(self._finish, deadline))
            return
        for link in list(self._standing):
            self._down(link, CLOSED_HERE)
        self.lanes.close()
        self.loop.stop()

    def forked(self) -> None:
        """In a forked child: lets go of what belongs to the parent."""
        self._closed = True
        coming = [pair.link for pair in self._pairs.values()]
        for lane in [lane for link in (*self._standing, *coming) for lane in link.lanes]:
            if lane.socket is not None:
                lane.socket.close()
        self.lanes.forked()
        self.loop.forked()


def _after_fork_in_child() -> None:
    for transport in list(_living):
        transport.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
