"""Links over gRPC: TCP addresses, and peers that are not ours. What all links promise: test_links.py."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import grpc
import pytest

from cutline.errors import PortInUse
from cutline.participant.lanes import HEADER, Reassembler
from cutline.participant.transport import CLOSED_BY_PEER, CLOSED_HERE, LinkDown, LinkUp, PacketIn
from cutline.participant.transport_grpc import METHOD, GrpcTransport
from tests.participant.test_links import SOON, End, MakeEnd, make_end

__all__ = ("kind", "make_end")


@pytest.fixture
def kind() -> str:
    return "grpc"


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
def test_tcp(make_end: MakeEnd, listen: str) -> None:
    server, client = make_end(listen, name="server"), make_end()
    link, accepted = client.dial(server.address).link, server.next(LinkUp).link
    for payload in (b"", b"one", b"x" * 1_000_000):
        link.send(payload)
        assert server.next(PacketIn).payload == payload
        accepted.send_control(payload)
        assert client.next(PacketIn).payload == payload
    link.close()
    assert client.next(LinkDown).reason == CLOSED_HERE
    assert server.next(LinkDown).reason == CLOSED_BY_PEER


def test_a_tcp_port_in_use_is_named(make_end: MakeEnd) -> None:
    first = make_end("127.0.0.1:0")
    with pytest.raises(PortInUse, match=first.address):
        End("grpc", first.address)
    assert make_end().dial(first.address).greeting == b"end"


def test_nobody_listens_at_a_port(make_end: MakeEnd) -> None:
    server = make_end("127.0.0.1:0")
    server.transport.close()
    refused = make_end().refused(server.address)
    assert refused.gone and server.address in refused.reason


def raw_lane(channel: grpc.Channel, token: bytes, lane: str, tie: str, messages: Iterator[bytes]) -> object:
    return channel.stream_stream(METHOD)(
        messages,
        metadata=(
            ("cutline-token-bin", token),
            ("cutline-wire", "1"),
            ("cutline-link", tie),
            ("cutline-lane", lane),
        ),
        timeout=SOON,
    )


def feed(messages: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
    while (message := messages.get()) is not None:
        yield message


def test_an_unauthenticated_client_cannot_make_the_server_read(
    make_end: MakeEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("decoded a byte of a stranger")

    server = make_end("unix:")
    monkeypatch.setattr(Reassembler, "feed", forbidden)
    monkeypatch.setattr(GrpcTransport, "accept_lane", forbidden)
    with grpc.insecure_channel(server.address) as channel:
        for token in (b"", b"guess", b"secret\x00", b"\xff" * 4000):
            call = raw_lane(channel, token, "data", "t", iter([b"x" * 100_000] * 100))
            with pytest.raises(grpc.RpcError) as caught:
                list(call)  # type: ignore[call-overload]
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        naked = channel.stream_stream(METHOD)(iter([b"x"]))
        with pytest.raises(grpc.RpcError) as caught:
            list(naked)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert server.events.empty()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\xff\xfe not records", "garbage"),
        (HEADER.pack(3 | 5 << 2) + b"12345", "garbage"),
        (b"", "garbage"),
        (b"x" * 3_000_000, "broke"),  # larger than any message of ours: refused by its length
    ],
)
def test_garbage_of_an_authenticated_peer_ends_the_link(
    make_end: MakeEnd, message: bytes, reason: str
) -> None:
    server = make_end("unix:")
    data: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    control: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with grpc.insecure_channel(server.address) as channel:
        calls = [
            raw_lane(channel, b"secret", lane, "tie", feed(messages))
            for lane, messages in (("data", data), ("control", control))
        ]
        data.put(b"\xff greeting")
        control.put(b"\xff greeting")
        assert server.next(LinkUp).greeting == b"\xff greeting"
        data.put(message)
        assert reason in server.next(LinkDown).reason
        data.put(None)
        control.put(None)
        assert calls
    assert make_end().dial(server.address).greeting == b"end"  # the server lives


def test_lanes_that_make_no_link_are_refused(make_end: MakeEnd) -> None:
    server = make_end("unix:")
    with grpc.insecure_channel(server.address) as channel:
        for lane, tie in (("neither", "t"), ("data", "")):
            with pytest.raises(grpc.RpcError) as caught:
                list(raw_lane(channel, b"secret", lane, tie, iter(())))  # type: ignore[call-overload]
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError):  # ends before it greets
            list(raw_lane(channel, b"secret", "data", "t", iter(())))  # type: ignore[call-overload]
    assert server.events.empty()
