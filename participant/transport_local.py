"""Links inside one process: the events of transport.py without sockets, for tests, simulators, embedding.

All transports of one `LocalHub` reach each other. What is sent becomes a `Delivery`. Without a scheduler
the hub delivers at once, in the order of sending, from whichever thread sent; a delivery that causes
another send only queues it, so ``post`` may handle its event on the spot and the order stays that of a
queue: one thread gives one order, always. With a scheduler every delivery is handed to it, and it decides
when to call `Delivery.deliver`, in which order, or to `Delivery.drop` it. Real links keep order on a lane
and lose nothing but a suffix; a simulator that wants to stay within that breaks the link (`LocalLink.sever`)
after it dropped something.
"""

from __future__ import annotations

import hmac
import threading
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

from cutline.errors import PortInUse

from .transport import (
    CLOSED_BY_PEER,
    CLOSED_HERE,
    HIGH_WATER,
    LOW_WATER,
    WRONG_TOKEN,
    Drained,
    LinkDown,
    LinkRefused,
    LinkUp,
    PacketIn,
    Post,
)

__all__ = ("Delivery", "LocalHub", "LocalLink", "LocalTransport", "Scheduler")

Kind: TypeAlias = Literal["connect", "data", "control", "down"]
_PREFIX = "local:"


class Delivery:
    """Something under way from one transport to another. `deliver` or `drop` it once."""

    __slots__ = ("_effect", "_forget", "kind", "number", "payload", "source", "target")

    def __init__(
        self,
        number: int,
        kind: Kind,
        ends: tuple[str, str],
        payload: bytes,
        effect: Callable[[], None],
        forget: Callable[[], None],
    ) -> None:
        self.number = number
        self.kind = kind
        self.source, self.target = ends
        self.payload = payload
        self._effect: Callable[[], None] | None = effect
        self._forget = forget

    def __repr__(self) -> str:
        return f"<{self.number}: {self.kind} {self.source} -> {self.target}, {len(self.payload)} bytes>"

    def deliver(self) -> None:
        """Let it arrive; without effect if its link is down or it arrived before."""
        effect, self._effect = self._effect, None
        if effect is not None:
            self._forget()
            effect()

    def drop(self) -> None:
        """It never arrives."""
        if self._effect is not None:
            self._effect = None
            self._forget()


Scheduler: TypeAlias = Callable[[Delivery], None]


class LocalHub:
    """The network of a process. ``scheduler``: see the module's head."""

    def __init__(self, scheduler: Scheduler | None = None) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._queue: deque[Delivery] = deque()
        self._pumping = False
        self._number = 0
        self.listeners: dict[str, LocalTransport] = {}

    def carry(
        self,
        kind: Kind,
        ends: tuple[str, str],
        payload: bytes,
        effect: Callable[[], None],
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        with self._lock:
            self._number += 1
            delivery = Delivery(self._number, kind, ends, payload, effect, forget)
            if self._scheduler is None:
                self._queue.append(delivery)
                if self._pumping:
                    return
                self._pumping = True
        if self._scheduler is not None:
            self._scheduler(delivery)
            return
        self._pump()

    def _pump(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._pumping = False
                    return
                delivery = self._queue.popleft()
            try:
                delivery.deliver()
            except BaseException:
                with self._lock:
                    self._pumping = False
                raise


class LocalLink:
    """One end of a link. See `cutline.participant.transport.Link`."""

    def __init__(self, transport: LocalTransport, key: object, outbound: bool, greeting: bytes) -> None:
        self.transport = transport
        self.key = key
        self.outbound = outbound
        self.greeting = greeting
        self.peer: LocalLink | None = None
        self.closed = False
        self.is_down = False
        self._lock = threading.Lock()
        self._backlog = 0
        self._high = False

    def __repr__(self) -> str:
        peer = self.peer.transport.name if self.peer is not None else "?"
        return f"<LocalLink {self.transport.name} {'to' if self.outbound else 'from'} {peer}>"

    @property
    def backlog(self) -> int:
        return self._backlog

    def send(self, payload: bytes) -> None:
        self._send(payload, "data")

    def send_control(self, payload: bytes) -> None:
        self._send(payload, "control")

    def _send(self, payload: bytes, kind: Literal["data", "control"]) -> None:
        peer = self.peer
        if self.closed or peer is None:
            return
        with self._lock:
            self._backlog += len(payload)
            self._high = self._high or self._backlog > HIGH_WATER
        ends = (self.transport.name, peer.transport.name)
        self.transport.hub.carry(
            kind,
            ends,
            payload,
            lambda: peer.arrive(payload, kind == "control"),
            lambda: self._gone_out(len(payload)),
        )

    def _gone_out(self, size: int) -> None:
        with self._lock:
            self._backlog -= size
            drained = self._high and self._backlog <= LOW_WATER
            if drained:
                self._high = False
        if drained and not self.is_down:
            self.transport.post(Drained(self))

    def arrive(self, payload: bytes, control: bool) -> None:
        if not (self.closed or self.is_down):
            self.transport.post(PacketIn(self, payload, control))

    def close(self) -> None:
        peer = self.peer
        if self.closed or peer is None:
            return
        self.closed = True
        hub = self.transport.hub
        here, there = self.transport.name, peer.transport.name
        hub.carry("down", (here, there), b"", lambda: peer.go_down(CLOSED_BY_PEER))
        hub.carry("down", (there, here), b"", lambda: self.go_down(CLOSED_HERE))

    def sever(self, reason: str = "the connection broke") -> None:
        """Break the link as a network would: both ends go down now, what is under way is lost."""
        self.go_down(reason)
        if self.peer is not None:
            self.peer.go_down(reason)

    def go_down(self, reason: str) -> None:
        with self._lock:
            if self.is_down:
                return
            self.is_down = self.closed = True
        self.transport.links.discard(self)
        if not self.transport.crashed:
            self.transport.post(LinkDown(self, reason))


class LocalTransport:
    """See `cutline.participant.transport.Transport`.

    ``listen``: ``local:NAME``, ``local:`` (its own name) or None. Everything else as in GrpcTransport.
    """

    attendance = None

    def __init__(
        self,
        hub: LocalHub,
        token: str | bytes,
        post: Post,
        listen: str | None,
        name: str,
        greeting: Callable[[], bytes] = bytes,
    ) -> None:
        self.hub = hub
        self.token = token.encode() if isinstance(token, str) else token
        self.post = post
        self.name = name
        self.greet = greeting
        self.links: set[LocalLink] = set()
        self.crashed = False
        self._closed = False
        self._listen = listen
        self._address = ""

    def start(self) -> str:
        if self._listen is not None:
            address = self._listen if self._listen != _PREFIX else _PREFIX + self.name
            if self.hub.listeners.setdefault(address, self) is not self:
                raise PortInUse(
                    f"cannot listen on {address}: the address is in use; choose another", address=address
                )
            self._address = address
        return self._address

    def connect(self, address: str, greeting: bytes, key: object) -> None:
        if self._closed:
            self.post(LinkRefused(key, CLOSED_HERE, gone=False))
            return
        ends = (self.name, address.removeprefix(_PREFIX))
        self.hub.carry("connect", ends, greeting, lambda: self._meet(address, greeting, key))

    def _meet(self, address: str, greeting: bytes, key: object) -> None:
        if self.crashed:
            return
        acceptor = self.hub.listeners.get(address)
        if self._closed or acceptor is None:
            reason = CLOSED_HERE if self._closed else f"nobody listens at {address}"
            self.post(LinkRefused(key, reason, gone=not self._closed))
            return
        if not hmac.compare_digest(acceptor.token, self.token):
            self.post(LinkRefused(key, WRONG_TOKEN, gone=False))
            return
        theirs = LocalLink(acceptor, None, False, greeting)
        ours = LocalLink(self, key, True, acceptor.greet())
        theirs.peer, ours.peer = ours, theirs
        acceptor.links.add(theirs)
        self.links.add(ours)
        acceptor.post(LinkUp(theirs, theirs.greeting, None))
        self.post(LinkUp(ours, ours.greeting, key))

    def close(self) -> None:
        self._leave()
        for link in self._in_order():
            peer = link.peer
            link.go_down(CLOSED_HERE)
            if peer is not None:
                peer.go_down(CLOSED_BY_PEER)

    def crash(self) -> None:
        """Vanish as a killed process does: the peers' links break, this side posts nothing any more."""
        self.crashed = True
        self._leave()
        for link in self._in_order():
            link.sever()

    def _leave(self) -> None:
        self._closed = True
        if self._address and self.hub.listeners.get(self._address) is self:
            del self.hub.listeners[self._address]

    def _in_order(self) -> list[LocalLink]:
        # Sets of objects iterate by address; tests compare traces.
        return sorted(self.links, key=repr)
