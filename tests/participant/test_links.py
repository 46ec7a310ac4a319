"""Links of every transport: real processes, real sockets, SIGKILL; the other end is `tests.participant.peer`.

Each test runs over gRPC and over Unix sockets without it: what is promised is the same.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from cutline.errors import ConnectionRefused, PortInUse, RefusedOption
from cutline.participant.transport import (
    CLOSED_BY_PEER,
    CLOSED_HERE,
    WRONG_TOKEN,
    Drained,
    Event,
    Link,
    LinkDown,
    LinkRefused,
    LinkUp,
    PacketIn,
)
from tests.participant.peer import KINDS

E = TypeVar("E")
SOON = 20.0  # seconds: never reached unless something is broken


class End:
    """A transport and the events it posted."""

    def __init__(
        self, kind: str, listen: str | None = None, token: str = "secret", name: str = "end"
    ) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.transport = KINDS[kind](token, self.events.put, listen, name, lambda: name.encode())
        self.address = self.transport.start()

    def next(self, kind: type[E]) -> E:
        event = self.events.get(timeout=SOON)
        assert isinstance(event, kind), event
        return event

    def dial(self, address: str) -> LinkUp:
        self.transport.connect(address, b"hello", "key")
        return self.next(LinkUp)

    def refused(self, address: str) -> LinkRefused:
        self.transport.connect(address, b"hello", "key")
        return self.next(LinkRefused)


MakeEnd = Callable[..., End]
MakePeer = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture(params=("grpc", "stream"))
def kind(request: pytest.FixtureRequest) -> str:
    """Which transport."""
    named: str = request.param
    return named


@pytest.fixture
def make_end(kind: str) -> Iterator[MakeEnd]:
    made: list[End] = []

    def make(listen: str | None = None, token: str = "secret", name: str = "end") -> End:
        made.append(End(kind, listen, token, name))
        return made[-1]

    yield make
    for end in made:
        end.transport.close()
    assert not [
        thread for thread in threading.enumerate() if thread.name in ("cutline-grpc", "cutline-stream")
    ]


@pytest.fixture
def make_peer(kind: str) -> Iterator[MakePeer]:
    made: list[subprocess.Popen[str]] = []

    def make(listen: str = "unix:", dial: str = "-") -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "tests.participant.peer", kind, "secret", listen, dial]
        peer = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        made.append(peer)
        assert peer.stdout is not None
        return peer, peer.stdout.readline().strip()

    yield make
    for peer in made:
        peer.kill()
        peer.communicate()


def send(link: Link, payload: bytes, control: bool) -> None:
    (link.send_control if control else link.send)(payload)


def address_of(kind: str, path: str) -> str:
    """How a socket of that path is dialed."""
    return ("stream:" if kind == "stream" else "unix:") + path


def test_greetings_and_packets_both_ways(make_end: MakeEnd) -> None:
    server, client = make_end("unix:", name="server"), make_end()
    up = client.dial(server.address)
    assert (up.greeting, up.key, up.link.outbound, up.link.key) == (b"server", "key", True, "key")
    accepted = server.next(LinkUp)
    assert (accepted.greeting, accepted.key, accepted.link.outbound) == (b"hello", None, False)
    for control in (False, True):
        for payload in (b"", b"one", b"x" * 1_000_000):
            send(up.link, payload, control)
            there = server.next(PacketIn)
            assert (there.payload, there.control) == (payload, control)
            send(accepted.link, payload, control)
            back = client.next(PacketIn)
            assert (back.payload, back.control) == (payload, control)
    up.link.close()
    assert client.next(LinkDown).reason == CLOSED_HERE
    assert server.next(LinkDown).reason == CLOSED_BY_PEER
    assert up.link.backlog == 0


@pytest.mark.parametrize("closer", ["dialer", "acceptor"])
def test_what_was_accepted_arrives_before_the_link_ends(make_end: MakeEnd, closer: str) -> None:
    server, client = make_end("unix:"), make_end()
    ours, theirs = client.dial(server.address).link, server.next(LinkUp).link
    near, far, link = (client, server, ours) if closer == "dialer" else (server, client, theirs)
    for number in range(500):
        link.send(b"%d" % number)
    link.send(b"x" * 3_000_000)
    link.send_control(b"last words")
    link.close()
    link.send(b"too late")
    got = [far.next(PacketIn) for _ in range(502)]
    assert [packet.payload for packet in got if not packet.control][:500] == [b"%d" % n for n in range(500)]
    assert [packet.payload for packet in got if packet.control] == [b"last words"]
    assert far.next(LinkDown).reason == CLOSED_BY_PEER
    assert near.next(LinkDown).reason == CLOSED_HERE


def test_sends_from_the_transports_own_thread(make_end: MakeEnd, kind: str) -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def post(event: Event) -> None:
        if isinstance(event, LinkUp):
            event.link.send(b"at once")
            event.link.send_control(b"at once")
        events.put(event)

    client = make_end()
    greeter = KINDS[kind]("secret", post, "unix:", "greeter")
    try:
        client.dial(greeter.start())
        assert {client.next(PacketIn).control, client.next(PacketIn).control} == {True, False}
    finally:
        greeter.close()
    assert client.next(LinkDown).reason == CLOSED_BY_PEER


def test_wrong_token_is_refused_on_every_lane(make_end: MakeEnd) -> None:
    server, stranger = make_end("unix:"), make_end(token="guess")
    assert stranger.refused(server.address) == LinkRefused("key", WRONG_TOKEN, gone=False)
    assert server.events.empty()


def test_nobody_listens(make_end: MakeEnd, kind: str, tmp_path: Path) -> None:
    client = make_end()
    server = make_end("unix:")
    server.transport.close()
    for address in (server.address, address_of(kind, f"{tmp_path}/nothing")):
        refused = client.refused(address)
        assert refused.gone and address in refused.reason


def test_something_else_listens(make_end: MakeEnd, kind: str, tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{tmp_path}/other")
        other.listen()
        client = make_end()
        client.transport.connect(address_of(kind, f"{tmp_path}/other"), b"hello", "key")
        connection, _ = other.accept()
        connection.sendall(b"220 mail.example.org ESMTP\r\n")
        connection.close()
        refused = client.next(LinkRefused)
    assert not refused.gone


def test_an_address_in_use_is_named(make_end: MakeEnd, kind: str, tmp_path: Path) -> None:
    first = make_end(f"unix:{tmp_path}/socket")
    with pytest.raises(PortInUse, match=f"unix:{tmp_path}/socket"):
        End(kind, f"unix:{tmp_path}/socket")
    assert make_end().dial(first.address).greeting == b"end"


def test_the_socket_of_a_dead_process_is_cleared_away(
    make_end: MakeEnd, make_peer: MakePeer, tmp_path: Path
) -> None:
    peer, address = make_peer(f"unix:{tmp_path}/socket")
    peer.kill()
    peer.wait()
    assert os.path.exists(f"{tmp_path}/socket")
    assert make_end().refused(address).gone
    assert make_end(f"unix:{tmp_path}/socket").address == address


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:0", "10.0.0.1:1", "unix:relative", "unix:/" + "x" * 120, "nonsense", "127.0.0.1:x"]
)
def test_addresses_that_are_refused(kind: str, listen: str) -> None:
    with pytest.raises(RefusedOption):
        End(kind, listen)


def test_folder_missing(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ConnectionRefused, match="folder"):
        End(kind, f"unix:{tmp_path}/missing/socket")


def test_sigkill_is_seen_at_once_and_a_new_process_can_be_dialed(
    make_end: MakeEnd, make_peer: MakePeer, tmp_path: Path
) -> None:
    client = make_end()
    for _ in range(2):
        peer, address = make_peer(f"unix:{tmp_path}/socket")
        link = client.dial(address).link
        link.send(b"ping")
        assert client.next(PacketIn).payload == b"ping"
        killed = time.monotonic()
        peer.kill()
        down = client.next(LinkDown)
        assert down.link is link and down.reason not in (CLOSED_BY_PEER, CLOSED_HERE)
        assert time.monotonic() - killed < 1.0  # measured: 10 ms; machines are noisy
        link.send(b"into the void")
        link.close()
    assert client.refused(address).gone


def test_sigkill_of_a_dialer_is_seen_by_the_acceptor(make_end: MakeEnd, make_peer: MakePeer) -> None:
    server = make_end("unix:")
    peer, _ = make_peer("-", server.address)
    up = server.next(LinkUp)
    assert up.greeting == b"dialer"
    peer.kill()
    assert server.next(LinkDown).link is up.link


def test_a_stopped_peer_keeps_its_link(make_end: MakeEnd, make_peer: MakePeer) -> None:
    client = make_end()
    peer, address = make_peer()
    link = client.dial(address).link
    peer.send_signal(signal.SIGSTOP)
    link.send(b"ping")
    with pytest.raises(queue.Empty):
        client.events.get(timeout=0.3)
    peer.send_signal(signal.SIGCONT)
    assert client.next(PacketIn).payload == b"ping"


def test_control_overtakes_64_megabytes(make_end: MakeEnd, make_peer: MakePeer) -> None:
    client = make_end()
    _, address = make_peer()
    link = client.dial(address).link
    payload = os.urandom(1024) * 65536
    link.send(payload)
    assert link.backlog > 60_000_000
    link.send_control(b"count")
    answer = client.next(PacketIn)
    assert answer.control and answer.payload == b"0"  # the data payload was still under way
    assert client.next(Drained).link is link
    assert client.next(PacketIn).payload == payload


def test_a_link_that_breaks_drops_the_partial_payload(make_end: MakeEnd, make_peer: MakePeer) -> None:
    server = make_end("unix:")
    peer, _ = make_peer("-", server.address)
    link = server.next(LinkUp).link
    for _ in range(4):
        link.send(b"x" * 30_000_000)
    peer.kill()  # while it echoes
    event = server.events.get(timeout=SOON)
    while not isinstance(event, LinkDown):
        assert isinstance(event, Drained) or (
            isinstance(event, PacketIn) and len(event.payload) == 30_000_000
        )
        event = server.events.get(timeout=SOON)
    assert server.events.empty()


def test_forty_links_and_no_descriptor_is_left(make_end: MakeEnd) -> None:
    server, client = make_end("unix:"), make_end()
    make_end().dial(server.address).link.close()  # what gRPC opens once per process
    server.next(LinkUp), server.next(LinkDown)
    before = _descriptors()
    links = [client.dial(server.address).link for _ in range(40)]
    accepted = [server.next(LinkUp).link for _ in range(40)]
    for number, link in enumerate(links):
        link.send(b"%d" % number)
    assert {server.next(PacketIn).payload for _ in links} == {b"%d" % number for number in range(40)}
    for link in links[:20]:
        link.close()
    for link in accepted[20:]:
        link.close()
    for _ in range(40):
        client.next(LinkDown), server.next(LinkDown)
    deadline = time.monotonic() + SOON
    while _descriptors() > before and time.monotonic() < deadline:
        time.sleep(0.01)  # gRPC closes sockets in threads of its own
    assert _descriptors() <= before


def _descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_close_with_links_standing_and_dials_under_way(make_end: MakeEnd, kind: str, tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{tmp_path}/silent")
        silent.listen()
        server, client = make_end("unix:"), make_end()
        link = client.dial(server.address).link
        client.transport.connect(address_of(kind, f"{tmp_path}/silent"), b"hello", "slow")
        began = time.monotonic()
        client.transport.close()
        assert time.monotonic() - began < 5.0
    ends = {type(client.events.get(timeout=SOON)) for _ in range(2)}
    assert ends == {LinkDown, LinkRefused}
    assert client.events.empty()
    client.transport.connect(server.address, b"hello", "late")
    assert client.next(LinkRefused).reason == CLOSED_HERE
    link.close()


def test_a_process_that_returns_from_main_with_links_standing_ends_silently(
    make_end: MakeEnd, make_peer: MakePeer
) -> None:
    client = make_end()
    peer, address = make_peer()
    client.dial(address).link.send(b"hang")
    _, noise = peer.communicate(timeout=SOON)
    assert (peer.returncode, noise) == (0, "")
    assert client.next(LinkDown).reason == CLOSED_BY_PEER


FORKS = """
import os, queue, subprocess, sys
from tests.participant.peer import KINDS
events = queue.SimpleQueue()
transport = KINDS[sys.argv[1]]("secret", events.put, "unix:", "forker")
transport.connect(transport.start(), b"", "self")
link = events.get().link
for _ in range(3):
    pid = os.fork()
    if not pid:
        transport.close()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    subprocess.run(["true"], preexec_fn=lambda: None, check=True)
link.send(b"still there")
"""


def test_forks_of_user_code_print_nothing(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, kind],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_payload_is_left_behind_whoever_sends(make_end: MakeEnd, make_peer: MakePeer) -> None:
    """Senders of several threads race with each other, the writer and writes begun by senders."""
    client = make_end()
    _, address = make_peer()
    link = client.dial(address).link
    rounds, senders = 400, 4

    def sender(number: int) -> None:
        draw = random.Random(number)
        for count in range(rounds):
            size = draw.choice((0, 10, 100, 40_000))
            send(link, b"%d %d " % (number, count) + b"." * size, control=draw.random() < 0.3)
            if draw.random() < 0.3:
                time.sleep(draw.random() * 0.001)  # lets the lane become idle

    threads = [threading.Thread(target=sender, args=(number,)) for number in range(senders)]
    for thread in threads:
        thread.start()
    seen: dict[tuple[int, bool], list[int]] = {}
    for _ in range(rounds * senders):
        event = client.events.get(timeout=SOON)
        while isinstance(event, Drained):
            event = client.events.get(timeout=SOON)
        assert isinstance(event, PacketIn)
        by, count, _ = event.payload.split(b" ", 2)
        seen.setdefault((int(by), event.control), []).append(int(count))
    for thread in threads:
        thread.join()
    for counts in seen.values():
        assert counts == sorted(counts)
    for number in range(senders):
        assert sorted(seen[number, False] + seen[number, True]) == list(range(rounds))
    assert link.backlog == 0
