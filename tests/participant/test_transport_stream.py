"""Unix sockets without gRPC: strangers, garbage, halves of links, forks. All links: test_links.py."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from cutline.errors import RefusedOption
from cutline.participant import transport_stream
from cutline.participant.lanes import HEADER, Reassembler
from cutline.participant.link_head import HEAD_BYTES
from cutline.participant.link_stream import LENGTH, LONGEST, Lane, StreamLink
from cutline.participant.transport import CHUNK, LinkDown, LinkRefused, LinkUp
from cutline.participant.transport_mixed import MixedTransport
from cutline.participant.transport_stream import StreamTransport
from tests.participant.test_links import SOON, MakeEnd, make_end

__all__ = ("kind", "make_end")

SECRET = blake3(b"secret").digest()


@pytest.fixture
def kind() -> str:
    return "stream"


@pytest.fixture
def raw() -> Iterator[list[socket.socket]]:
    """Connections of peers that are not ours."""
    made: list[socket.socket] = []
    yield made
    for each in made:
        each.close()


def head(token: bytes = SECRET, lane: bytes = b"d", tie: bytes = b"t" * 16) -> bytes:
    return b"cutline\x01" + token + lane + tie


def framed(message: bytes) -> bytes:
    return LENGTH.pack(len(message)) + message


def dial(made: list[socket.socket], address: str, said: bytes) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    made.append(connection)
    connection.settimeout(SOON)
    connection.connect(address.removeprefix("stream:"))
    connection.sendall(said)
    return connection


def ends(connection: socket.socket) -> bytes:
    """What comes until the end of a connection."""
    came = b""
    try:
        while more := connection.recv(65536):
            came += more
    except ConnectionResetError:
        return came
    return came


def test_a_stranger_is_not_read(
    make_end: MakeEnd, raw: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("decoded a byte of a stranger")

    server = make_end("unix:")
    monkeypatch.setattr(Reassembler, "feed", forbidden)
    monkeypatch.setattr(Lane, "cut", forbidden)
    for said in (head(token=b"x" * 32), head(token=bytes(32)) + b"x" * 10_000, b"y" * 10_000):
        assert ends(dial(raw, server.address, said)) == b"\0"
    assert server.events.empty()


def test_a_head_that_ends_early_is_nobody(make_end: MakeEnd, raw: list[socket.socket]) -> None:
    server = make_end("unix:")
    dial(raw, server.address, head()[:20]).close()
    assert make_end().dial(server.address).greeting == b"end"
    assert isinstance(server.next(LinkUp), LinkUp) and server.events.empty()


def test_who_says_nothing_is_hung_up_on(
    make_end: MakeEnd, raw: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_stream, "PAIRING", 0.05)
    server = make_end("unix:")
    assert ends(dial(raw, server.address, b"")) == b""
    alone = dial(raw, server.address, head() + framed(b"alone"))
    assert ends(alone) == b"\x01" + framed(b"end")
    assert server.events.empty()


def test_lanes_that_make_no_link_are_hung_up_on(make_end: MakeEnd, raw: list[socket.socket]) -> None:
    server = make_end("unix:")
    assert ends(dial(raw, server.address, head(lane=b"?", tie=b"u" * 16))) == b""
    first = dial(raw, server.address, head())
    assert first.recv(1) == b"\x01"
    assert ends(dial(raw, server.address, head())) == b""
    assert server.events.empty()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (framed(b"\xff\xfe not records"), "garbage"),
        (framed(HEADER.pack(3 | 5 << 2) + b"12345"), "garbage"),
        (framed(b""), "garbage"),
        (LENGTH.pack(LONGEST + 1), "longer than any of ours"),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_garbage_of_an_authenticated_peer_ends_the_link(
    make_end: MakeEnd, raw: list[socket.socket], message: bytes, reason: str, together: bool
) -> None:
    server = make_end("unix:")
    greeting = framed(b"\xff greeting")
    control = dial(raw, server.address, head(lane=b"c") + greeting)
    data = dial(raw, server.address, head(lane=b"d") + greeting + (message if together else b""))
    if not (together and reason.startswith("longer")):
        assert server.next(LinkUp).greeting == b"\xff greeting"
        if not together:
            data.sendall(message)
        assert reason in server.next(LinkDown).reason
    # Else it is hung up on before the link stands, and nobody hears of it.
    assert ends(control).startswith(b"\x01") and ends(data).startswith(b"\x01")
    assert make_end().dial(server.address).greeting == b"end"  # the server lives
    assert server.next(LinkUp).greeting == b"hello" and server.events.empty()


def test_greetings_larger_than_a_socket_takes(make_end: MakeEnd) -> None:
    server, client = make_end("unix:"), make_end()
    client.transport.connect(server.address, b"g" * CHUNK, "key")
    assert client.next(LinkUp).greeting == b"end"
    assert server.next(LinkUp).greeting == b"g" * CHUNK
    with pytest.raises(ValueError, match="a greeting has at most"):
        client.transport.connect(server.address, b"g" * (CHUNK + 1), "key")


def listener_at(path: Path, raw: list[socket.socket]) -> socket.socket:
    """Somebody else's; it is closed with those of `raw`."""
    listener = socket.socket(socket.AF_UNIX)
    raw.append(listener)
    listener.settimeout(SOON)
    listener.bind(str(path))
    listener.listen()
    return listener


def test_a_greeting_goes_on_after_the_verdict(
    make_end: MakeEnd, raw: list[socket.socket], tmp_path: Path
) -> None:
    listener = listener_at(tmp_path / "s", raw)
    client = make_end()
    client.transport.connect(f"stream:{tmp_path / 's'}", b"g" * CHUNK, "key")
    lanes = [listener.accept()[0] for _ in range(2)]
    raw += lanes
    for lane in lanes:
        lane.settimeout(SOON)
        # Far less than a socket holds: what did not fit still has to wait when the verdict comes.
        assert len(lane.recv(HEAD_BYTES)) == HEAD_BYTES
        lane.sendall(b"\x01")
    # The verdicts have been read when the transport has done something that came after them.
    client.transport.connect(f"stream:{tmp_path / 'nobody'}", b"", "later")
    assert client.next(LinkRefused).key == "later"
    for lane in lanes:
        came = b""
        while len(came) < LENGTH.size + CHUNK:
            came += lane.recv(CHUNK)
        assert came == framed(b"g" * CHUNK)


def test_a_dial_is_answered_without_descriptors(make_end: MakeEnd, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        client = make_end()
        client.transport.connect(f"stream:{tmp_path / 's'}", b"", "key")
        lanes = [listener.accept()[0] for _ in range(2)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        for lane in lanes:
            lane.close()
        refused = client.next(LinkRefused)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert refused.key == "key" and not refused.gone


def test_who_has_said_half_a_head_is_hung_up_on_at_the_end(
    make_end: MakeEnd, raw: list[socket.socket]
) -> None:
    server = make_end("unix:")
    connection = dial(raw, server.address, head()[:5])
    # Has been taken when one that came later has been answered.
    make_end().dial(server.address)
    server.transport.close()
    assert ends(connection) == b""


def test_nothing_follows_a_farewell() -> None:
    here, there = socket.socketpair()
    with here, there:
        link = StreamLink(Still(), None, outbound=True)
        lane = link.data
        lane.socket = here
        lane.closing = True
        lane.outbox.append(b"in time")
        lane.flush()
        # A sender that had looked whether the link is closed before it was.
        lane.outbox.append(b"too late")
        lane.has_room()
        here.shutdown(socket.SHUT_WR)
        messages = lane.cut(ends(there))
    reassembler = Reassembler()
    assert [reassembler.feed(message) for message in messages] == [[b"in time"], []] and reassembler.ended


class Still:
    """A transport that does nothing."""

    last_send = 0.0

    def post(self, event: object) -> None:
        """Nobody hears it."""

    def soon(self, call: object) -> None:
        """There is no thread."""

    def watch(self, lane: object) -> None:
        """Nothing is looked at."""

    end = settle = watch


def test_no_folder_is_left_where_its_path_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(RefusedOption, match="set TMPDIR to a shorter one"):
        StreamTransport("secret", lambda _event: None, "unix:", "end").start()
    assert not list(long.iterdir())


def test_a_transport_dials_itself(make_end: MakeEnd) -> None:
    end = make_end("unix:")
    end.transport.connect(end.address, b"me", "self")
    ups = [end.next(LinkUp), end.next(LinkUp)]
    assert {(up.key, up.greeting) for up in ups} == {("self", b"end"), (None, b"me")}


def test_messages_are_cut_wherever_the_bytes_are() -> None:
    lane = Lane(StreamLink(None, None, outbound=True), "data")  # type: ignore[arg-type]
    whole = framed(b"one") + framed(b"") + framed(b"three")
    got = []
    for index in range(len(whole)):
        got += lane.cut(lane._part + whole[index : index + 1])
    assert got == [b"one", b"", b"three"] and lane._part == b""


def test_an_address_of_another_kind_is_refused(make_end: MakeEnd) -> None:
    with pytest.raises(RefusedOption, match="stream:"):
        make_end().transport.connect("unix:/somewhere", b"", "key")


def test_the_mixed_transport_dials_both(make_end: MakeEnd) -> None:
    from tests.participant.test_links import End

    coordinator, peer = End("grpc", "unix:", name="coordinator"), make_end("unix:", name="peer")
    mixed = End.__new__(End)
    import queue

    mixed.events = queue.SimpleQueue()
    mixed.transport = MixedTransport("secret", mixed.events.put, "unix:", "mixed")
    try:
        assert mixed.transport.start().startswith("stream:")
        assert mixed.dial(coordinator.address).greeting == b"coordinator"
        assert mixed.dial(peer.address).greeting == b"peer"
    finally:
        mixed.transport.close()
        coordinator.transport.close()
    assert {type(mixed.events.get(timeout=SOON)) for _ in range(2)} == {LinkDown}
    mixed.transport.connect(peer.address, b"", "late")
    assert isinstance(mixed.events.get(timeout=SOON), LinkRefused)


def test_a_listener_without_descriptors_tries_again(
    make_end: MakeEnd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_end("unix:")
    assert isinstance(server.transport, StreamTransport)
    listener = server.transport._listener

    class Exhausted:
        def __init__(self) -> None:
            self.left = 2

        def accept(self) -> Any:
            if self.left:
                self.left -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            assert listener is not None
            return listener.accept()

        def fileno(self) -> int:
            assert listener is not None
            return listener.fileno()

        def close(self) -> None:
            assert listener is not None
            listener.close()

    monkeypatch.setattr(server.transport, "_listener", Exhausted())
    assert make_end().dial(server.address).greeting == b"end"
    assert "Too many open files" in caplog.text


FORKING = """
import os, queue, sys, time
from cutline.participant.transport_stream import StreamTransport
events = queue.SimpleQueue()
transport = StreamTransport("secret", events.put, "unix:", "forker")
transport.start()
transport.connect(sys.argv[1], b"forker", "out")
events.get()
pid = os.fork()
if not pid:
    time.sleep(600)
print(pid, flush=True)
time.sleep(600)
"""


def test_a_forked_child_does_not_keep_its_parents_links(make_end: MakeEnd) -> None:
    server = make_end("unix:")
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKING, server.address],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        up = server.next(LinkUp)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            parent.kill()
            assert server.next(LinkDown).link is up.link
        finally:
            os.kill(child, signal.SIGKILL)
    finally:
        parent.kill()
        parent.communicate()


FORKING_EARLY = """
import os, queue, sys, time
from cutline.participant.transport_stream import StreamTransport
transport = StreamTransport("secret", queue.SimpleQueue().put, "unix:", "forker")
print(transport.start(), flush=True)
transport.connect(sys.argv[1], b"forker", "out")
sys.stdin.readline()
pid = os.fork()
if not pid:
    time.sleep(600)
print(pid, flush=True)
time.sleep(600)
"""


def test_a_forked_child_keeps_nothing_that_was_about_to_be_a_link(
    make_end: MakeEnd, raw: list[socket.socket], tmp_path: Path
) -> None:
    listener = listener_at(tmp_path / "s", raw)
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKING_EARLY, f"stream:{tmp_path / 's'}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert parent.stdin is not None and parent.stdout is not None
        address = parent.stdout.readline().strip()
        lanes = [listener.accept()[0] for _ in range(2)]
        raw += lanes
        for lane in lanes:
            lane.settimeout(SOON)
        half, whole = dial(raw, address, head()[:5]), dial(raw, address, head())
        # Its verdict and greeting: the one before it has been taken too.
        assert whole.recv(1) == b"\x01"
        parent.stdin.write("\n")
        parent.stdin.flush()
        child = int(parent.stdout.readline())
        try:
            parent.kill()
            for each in (*lanes, half, whole):
                ends(each)
        finally:
            os.kill(child, signal.SIGKILL)
    finally:
        parent.kill()
        parent.communicate()
