"""Links over gRPC streams: generic handlers, bytes in and bytes out, no generated code.

A link is two bidirectional streams, "data" and "control", each on a connection of its own (a local
subchannel pool per channel), tied together by a random id in the metadata. The first message of each
stream is a greeting, the acceptor answers with its own; from then on both directions carry the records
of lanes.py.

*Before any byte is read.* The token travels in the metadata and is compared in constant time when the
call arrives. A call with another token is ended with UNAUTHENTICATED: no message of it is asked for, so
nothing is buffered beyond HTTP/2's first flow-control window, and nothing is decoded. Off loopback a
token in clear text would not do: there the connection itself is authenticated, both ways (tls.py).

*Threads.* Everything runs in the process's gRPC thread (grpc_thread.py). Other threads wake it once per
burst: `_dirty` collects the lanes that have something to send, `_waking` says that a wake-up is under way.

*Ends.* A killed process closes its sockets, gRPC reports it, and the link is down within milliseconds.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any

from .addresses import TLS, Reservation, nobody_listens, reserve, target
from .grpc_thread import GrpcThread, acquire, grpc, release
from .link_grpc import Broken, GrpcLink, Lane, status_text
from .places import both, nearest
from .tls import credentials_of
from .transport import (
    CHUNK,
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

__all__ = ("METHOD", "GrpcTransport")

_log = logging.getLogger(__name__)

METHOD = "/cutline.Link/lane"
WIRE_VERSION = "1"
STOPPING = 0.1  # seconds the listener gives callers to hang up, before it cuts them off

# Between machines a connection may die without a word (a cable, a firewall that forgets): it is asked for a
# sign of life, and one that gives none is ended, so that it is dialed again. Nobody is lost by that.
_KEEPALIVE: tuple[tuple[str, int | str], ...] = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
)

# How gRPC says that the peer has no certificate of this run.
_HANDSHAKE = ("handshake", "CERTIFICATE", "SSL_ERROR")

_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", 2 * CHUNK),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
    ("grpc.http2.max_frame_size", 1024 * 1024),
    ("grpc.http2.write_buffer_size", 1024 * 1024),
    ("grpc.http2.bdp_probe", 0),
)


class _Arrival:
    """Lanes of one link that have reached the acceptor so far."""

    __slots__ = ("done", "greeted", "link", "paired")

    def __init__(self, link: GrpcLink, loop: asyncio.AbstractEventLoop) -> None:
        self.link = link
        self.greeted = False  # one lane has
        self.paired: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()


class _Gate(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Decides over a call by its metadata alone."""

    def __init__(self, transport: GrpcTransport, token: bytes) -> None:
        self._transport = transport
        self._token = token

    def service(self, details: Any) -> Any:
        if details.method != METHOD:
            return None
        metadata = dict(details.invocation_metadata)
        offered = metadata.get("cutline-token-bin", b"")
        if not isinstance(offered, bytes) or not hmac.compare_digest(offered, self._token):
            return _refusal(grpc.StatusCode.UNAUTHENTICATED, WRONG_TOKEN)
        if metadata.get("cutline-wire") != WIRE_VERSION:
            return _refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{self._transport.name} speaks wire version {WIRE_VERSION}, "
                f"the caller {metadata.get('cutline-wire')}: use the same version of cutline on both sides",
            )
        return grpc.stream_stream_rpc_method_handler(self._transport.accept_lane)


def _refusal(code: Any, reason: str) -> Any:
    async def refuse(_requests: Any, stream: Any) -> None:
        await stream.abort(code, reason)

    return grpc.stream_stream_rpc_method_handler(refuse)


class GrpcTransport:
    """See `cutline.participant.transport.Transport`.

    ``token``: the secret of the run, equal on both sides of every link. ``listen``: ``unix:/path``,
    ``unix:`` (a new private folder), ``127.0.0.1:0`` or with a port; None dials out only. ``network``:
    ``tls:HOST:0`` or with a port, to be reached from other machines as well; `start` then returns both
    (places.py). ``name`` is for messages. ``greeting()`` gives what acceptors answer; it is called in the
    gRPC thread.
    """

    attendance = None

    def __init__(
        self,
        token: str | bytes,
        post: Post,
        listen: str | None,
        name: str,
        greeting: Callable[[], bytes] = bytes,
        network: str | None = None,
    ) -> None:
        self._token = token.encode() if isinstance(token, str) else token
        if not self._token:
            raise ValueError(f"{name}: an empty token would let everybody in")
        self.post = post
        self.name = name
        self._listens = [address for address in (listen, network) if address is not None]
        self._reaches_out = any(address.startswith(TLS) for address in self._listens)
        self._greeting = greeting
        self._thread: GrpcThread | None = None
        self._server: Any = None
        self._reservations: list[Reservation] = []
        self._arrivals: dict[str, _Arrival] = {}
        self._standing: dict[GrpcLink, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._dirty: deque[Lane] = deque()
        self._waking = False
        self._closed = False
        self.writes_at_once = False
        self.last_send = 0.0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._thread is not None, "start() comes first"
        return self._thread.loop

    def start(self) -> str:
        if self._thread is not None or self._closed:
            raise RuntimeError(f"{self.name}: a transport starts once")
        try:
            for address in self._listens:
                self._reservations.append(reserve(address))
        except BaseException:
            for reservation in self._reservations:
                reservation.release()
            raise
        self._thread = acquire(self, self._close)
        # asyncio's debug mode refuses what the sender's thread then does with a future, and without the
        # interpreter lock it would not be safe.
        self.writes_at_once = not self.loop.get_debug() and _interpreter_locked()
        if not self._reservations:
            return ""
        try:
            return self._thread.call(self._serve())
        except BaseException:
            self.close()
            raise

    async def _serve(self) -> str:
        options = (*_OPTIONS, *_KEEPALIVE) if self._reaches_out else _OPTIONS
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((_Gate(self, self._token),))
        ports = [self._open(reservation) for reservation in self._reservations]
        await self._server.start()
        bound = [one.bound(port) for one, port in zip(self._reservations, ports, strict=True)]
        return both(*bound) if len(bound) == 2 else bound[0]

    def _open(self, reservation: Reservation) -> int:
        try:
            if reservation.address.startswith(TLS):
                port = self._server.add_secure_port(target(reservation.address), self._identity(server=True))
            else:
                port = self._server.add_insecure_port(reservation.address)
        except RuntimeError as error:
            raise reservation.failure(str(error)) from error
        if not port:
            raise reservation.failure("gRPC gave no reason")
        return int(port)

    def _identity(self, *, server: bool) -> Any:
        """What this side shows, and what it takes, where addresses begin with ``tls:``."""
        own = credentials_of(self._token)
        if server:
            pairs = ((own.key, own.certificate),)
            return grpc.ssl_server_credentials(pairs, own.authority, require_client_auth=True)
        return grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)

    def _channel(self, address: str) -> Any:
        where = target(address)
        if not address.startswith(TLS):
            return grpc.aio.insecure_channel(where, options=_OPTIONS)
        options = (
            *_OPTIONS,
            *_KEEPALIVE,
            ("grpc.ssl_target_name_override", credentials_of(self._token).name),
        )
        return grpc.aio.secure_channel(where, self._identity(server=False), options=options)

    def connect(self, address: str, greeting: bytes, key: object) -> None:
        where = nearest(address)
        target(where)
        if len(greeting) > CHUNK:
            raise ValueError(f"{self.name}: a greeting has at most {CHUNK} bytes, not {len(greeting)}")
        if self._closed:
            self.post(LinkRefused(key, CLOSED_HERE, gone=False))
        else:
            self.soon(self._spawn, self._dial, where, greeting, key)

    def close(self) -> None:
        self._close(FLUSHING)

    # -- called by links, any thread ------------------------------------------------------------------

    def soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """Run something in the gRPC thread."""
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            if not self._closed:  # closed meanwhile: there is nothing left to run it for
                raise

    def inside(self) -> bool:
        """True in the gRPC thread."""
        assert self._thread is not None
        return self._thread.inside()

    def wake(self, lane: Lane) -> None:
        """A lane has something to send. One wake-up serves everything up to the moment it runs."""
        self._dirty.append(lane)
        if not self._waking:
            self._waking = True
            self.soon(self._wake_lanes)

    def _wake_lanes(self) -> None:
        self._waking = False
        dirty = self._dirty
        while dirty:
            dirty.popleft().wake()

    # -- in the gRPC thread ---------------------------------------------------------------------------

    def _spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        task = self.loop.create_task(work(*arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial(self, address: str, greeting: bytes, key: object) -> None:
        link = GrpcLink(self, key, outbound=True)
        channels = [self._channel(address) for _ in range(2)]
        tie = os.urandom(16).hex()
        lanes = ((link.data, "data", channels[0]), (link.control, "control", channels[1]))
        refused: LinkRefused | None = LinkRefused(key, CLOSED_HERE, gone=False)
        try:
            for lane, word, channel in lanes:
                lane.stream = channel.stream_stream(METHOD)(
                    metadata=(
                        ("cutline-token-bin", self._token),
                        ("cutline-wire", WIRE_VERSION),
                        ("cutline-link", tie),
                        ("cutline-lane", word),
                    )
                )
            both = asyncio.gather(*(_greet(lane.stream, greeting) for lane, _, _ in lanes))
            link.greeting = (await asyncio.wait_for(both, DIALING))[0]
            refused = None
            await self._live(link)
        except (grpc.aio.AioRpcError, Broken, asyncio.TimeoutError) as error:
            streams = [lane.stream for lane, _, _ in lanes if lane.stream is not None]
            refused = LinkRefused(key, *await _refusal_of(error, address, streams))
        finally:
            if refused is not None:
                self.post(refused)
            for lane, _, channel in lanes:
                if lane.stream is not None:
                    lane.stream.cancel()
                    lane.stream = None  # gRPC keeps a connection for as long as a call of it is referenced
                await channel.close()

    async def accept_lane(self, _requests: object, stream: Any) -> None:
        """One authenticated stream, from its greeting to its end."""
        metadata = dict(stream.invocation_metadata())
        tie = str(metadata.get("cutline-link", ""))
        word = metadata.get("cutline-lane")
        if self._closed or not tie or word not in ("data", "control"):
            await stream.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a lane of a link")
        arrival = self._arrivals.get(tie)
        if arrival is None:
            arrival = self._arrivals[tie] = _Arrival(GrpcLink(self, None, outbound=False), self.loop)
        link = arrival.link
        lane = link.control if word == "control" else link.data
        if lane.stream is not None:
            await stream.abort(grpc.StatusCode.ALREADY_EXISTS, "this lane of the link stands already")
        lane.stream = stream
        try:
            await asyncio.wait_for(self._pair(arrival, tie, stream), PAIRING)
        except (Broken, asyncio.TimeoutError):
            await stream.abort(grpc.StatusCode.CANCELLED, "the link did not come about")
        finally:
            self._arrivals.pop(tie, None)
            if not arrival.paired.done():
                arrival.paired.cancel()
        await asyncio.shield(arrival.done)

    async def _pair(self, arrival: _Arrival, tie: str, stream: Any) -> None:
        """Greet, and wait for the other lane. The second one to come brings the link to life."""
        greeting = await stream.read()
        if greeting is grpc.aio.EOF:
            raise Broken("ended before the greeting")
        await stream.write(self._greeting())
        if not arrival.greeted:
            arrival.greeted = True
            try:
                await asyncio.shield(arrival.paired)
            except asyncio.CancelledError:
                if arrival.paired.cancelled():
                    raise Broken("the other lane ended") from None
                raise
            return
        if arrival.paired.cancelled():
            raise Broken("the other lane ended")
        arrival.paired.set_result(None)
        arrival.link.greeting = greeting
        self._spawn(self._live_accepted, arrival)

    async def _live_accepted(self, arrival: _Arrival) -> None:
        try:
            await self._live(arrival.link)
        finally:
            arrival.link.data.stream = arrival.link.control.stream = None
            arrival.done.set_result(None)

    async def _live(self, link: GrpcLink) -> None:
        down = self.loop.create_future()
        self._standing[link] = down
        reason = CLOSED_HERE
        try:
            self.post(LinkUp(link, link.greeting, link.key))
            if self._closed:
                link.end()
            reason = await link.run()
        finally:
            del self._standing[link]
            down.set_result(None)
            self.post(LinkDown(link, reason))

    def _close(self, grace: float) -> None:
        thread = self._thread
        if self._closed or thread is None or thread.pid != os.getpid():
            self._closed = True
            return
        self._closed = True
        if thread.inside():
            self._spawn(self._shut_down, grace, True)
            return
        try:
            thread.call(self._shut_down(grace, False), 2 * grace + 1.0)
        except FutureTimeout:
            _log.warning("%s: the transport did not end in time; its thread is left behind", self.name)
        release(self)

    async def _shut_down(self, grace: float, then_release: bool) -> None:
        for link in list(self._standing):
            link.end()
        if self._standing:
            await asyncio.wait(list(self._standing.values()), timeout=grace)
        rest = self._tasks - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=grace)
        if self._server is not None:
            await self._server.stop(STOPPING)
        for reservation in self._reservations:
            reservation.release()
        if then_release:
            self.loop.call_soon(release, self)


async def _greet(stream: Any, greeting: bytes) -> bytes:
    with suppress(asyncio.InvalidStateError):  # ended already: the read says why
        await stream.write(greeting)
    answer = await stream.read()
    if answer is grpc.aio.EOF:
        raise Broken("ended before the greeting")
    return bytes(answer)


async def _turned_away(streams: Iterable[Any]) -> bool:
    """Whether a call ended with "wrong token", however the error that was seen first calls it.

    A greeting that is written while the refusal arrives fails with INTERNAL; the call's own status, which
    comes a moment later, tells.
    """
    for stream in streams:
        try:
            code = await asyncio.wait_for(stream.code(), 1.0)
        except asyncio.TimeoutError:
            continue
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return True
    return False


async def _refusal_of(error: BaseException, address: str, streams: Iterable[Any]) -> tuple[str, bool]:
    """Reason, and whether nobody listens."""
    if isinstance(error, asyncio.TimeoutError):
        return f"no answer from {address} within {DIALING:g} s", False
    if not isinstance(error, grpc.aio.AioRpcError):
        return f"{address}: {error}", False
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return WRONG_TOKEN, False
    if error.code() is grpc.StatusCode.INTERNAL and await _turned_away(streams):
        return WRONG_TOKEN, False
    if address.startswith(TLS) and any(word in str(error.details()) for word in _HANDSHAKE):
        return WRONG_TOKEN, False
    vacant = error.code() is grpc.StatusCode.UNAVAILABLE and await nobody_listens(address)
    return f"nobody listens at {address}" if vacant else f"{address}: {status_text(error)}", vacant


def _interpreter_locked() -> bool:
    asked = getattr(sys, "_is_gil_enabled", None)
    return asked is None or bool(asked())
