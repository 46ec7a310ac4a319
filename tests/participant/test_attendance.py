"""Two threads that may read a link: who reads, in what order, who is woken, and how it ends."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cutline.participant.attendance import CAN_ATTEND, Attendance
from cutline.participant.inbox import NOTHING, Inbox
from cutline.participant.link_stream import StreamLink
from cutline.participant.transport import LinkDown, LinkUp, PacketIn
from cutline.participant.transport_stream import StreamTransport

pytestmark = pytest.mark.skipif(
    not CAN_ATTEND, reason="the system cannot share sockets of two waiting threads"
)
SOON = 20.0


class Party(Inbox):
    """A transport with a consumer that attends, or does not."""

    def __init__(self, listen: str | None) -> None:
        super().__init__()
        self.readers: list[int] = []
        self.transport = StreamTransport("secret", self.post, listen, "party", lambda: b"hello")
        self.address = self.transport.start()

    def post(self, event: Any) -> None:
        if isinstance(event, PacketIn):
            self.readers.append(threading.get_ident())
        super().post(event)

    def await_event(self, kind: type) -> Any:
        """The next event that is no NOTHING; of this kind."""
        while (event := self.next_event(SOON)) is NOTHING:
            pass
        assert isinstance(event, kind), event
        return event


@pytest.fixture
def pair() -> Iterator[tuple[Party, Party, StreamLink, StreamLink]]:
    """Two parties and the ends of their link."""
    here, there = Party("unix:"), Party(None)
    there.transport.connect(here.address, b"hello", "key")
    mine, theirs = here.await_event(LinkUp).link, there.await_event(LinkUp).link
    yield here, there, mine, theirs
    here.transport.close()
    there.transport.close()


def test_whoever_waits_reads(pair: tuple[Party, Party, StreamLink, StreamLink]) -> None:
    here, _there, _mine, theirs = pair
    own = threading.get_ident()
    k = 0
    # On a busy machine the other thread may be the faster one for a while.
    while k < 100 or own not in here.readers:
        # Sent while this thread waits, or before: both must come.
        threading.Timer(0.0 if k % 2 else 0.001, theirs.send, (b"%d" % k,)).start()
        assert here.await_event(PacketIn).payload == b"%d" % k
        k += 1
        assert k < 100_000, "nobody who waits is woken"


def test_who_does_not_wait_is_read_for(pair: tuple[Party, Party, StreamLink, StreamLink]) -> None:
    here, _there, _mine, theirs = pair
    theirs.send(b"x")
    # Not through `next_event`: this thread handles something.
    assert here.queue.get(timeout=SOON).payload == b"x"
    assert here.readers != [threading.get_ident()]


def test_who_is_busy_looks_for_itself(pair: tuple[Party, Party, StreamLink, StreamLink]) -> None:
    here, _there, mine, theirs = pair
    inside, gate = threading.Event(), threading.Event()

    def stay_away() -> None:
        inside.set()
        gate.wait(SOON)

    # As if the transport's thread waited for a core.
    mine.transport.soon(stay_away)
    assert inside.wait(SOON)
    try:
        theirs.send(b"x")
        over = time.monotonic() + SOON
        while (event := here.next_event(0.0)) is NOTHING:
            assert time.monotonic() < over, "a busy runner waits for a thread that does not come"
        assert event.payload == b"x"
        assert here.readers == [threading.get_ident()]
    finally:
        gate.set()


def test_order_is_kept_whoever_reads(pair: tuple[Party, Party, StreamLink, StreamLink]) -> None:
    here, _there, _mine, theirs = pair

    def feed() -> None:
        for k in range(20_000):
            theirs.send(k.to_bytes(4, "big"))
            if k % 7 == 0:
                theirs.send_control(k.to_bytes(4, "big"))

    feeder = threading.Thread(target=feed)
    feeder.start()
    data: list[int] = []
    control: list[int] = []
    while len(data) + len(control) < 20_000 + 2858:
        event = here.await_event(PacketIn)
        (control if event.control else data).append(int.from_bytes(event.payload, "big"))
        if len(data) % 100 == 0:
            # A handler that takes its time.
            threading.Event().wait(0.0005)
    feeder.join()
    assert data == list(range(20_000))
    assert control == list(range(0, 20_000, 7))


def test_a_post_ends_the_waiting(pair: tuple[Party, Party, StreamLink, StreamLink]) -> None:
    here = pair[0]
    for k in range(2000):
        thread = threading.Thread(target=here.post, args=(k,))
        thread.start()
        assert here.await_event(int) == k
        thread.join()


def test_the_end_comes_last_and_once(pair: tuple[Party, Party, StreamLink, StreamLink]) -> None:
    here, there, mine, theirs = pair
    for k in range(50):
        theirs.send(b"%d" % k)
    theirs.close()
    came = [here.await_event(PacketIn).payload for _ in range(50)]
    assert came == [b"%d" % k for k in range(50)]
    down = here.await_event(LinkDown)
    assert (down.link, down.reason) == (mine, "closed by peer")
    assert there.await_event(LinkDown).link is theirs
    assert here.next_event(0.05) is NOTHING


def test_closed_under_the_attendant(pair: tuple[Party, Party, StreamLink, StreamLink]) -> None:
    here = pair[0]
    closer = threading.Timer(0.05, here.transport.close)
    closer.start()
    assert here.await_event(LinkDown).reason == "closed here"
    closer.join()
    attendance = here.transport.attendance
    assert attendance is not None and not attendance.attend(1.0, lambda: True)
    # There is nowhere to wait now but the queue.
    threading.Timer(0.01, here.post, (1,)).start()
    assert here.await_event(int) == 1


def test_a_bell_that_nobody_hears_does_no_harm() -> None:
    attendance = Attendance(lambda _lane: None)
    attendance.ring()
    events: queue.SimpleQueue[int] = queue.SimpleQueue()
    events.put(1)
    assert attendance.attend(SOON, events.empty)
    attendance.close()
    attendance.close()
    attendance.ring()
    assert not attendance.attend(SOON, events.empty)


def test_a_fork_after_the_end_closes_nothing_of_others() -> None:
    attendance = Attendance(lambda _lane: None)
    attendance.close()
    # The numbers that it had are these now.
    ends = [end for _ in range(4) for end in os.pipe()]
    attendance.forked()
    for end in ends:
        os.close(end)


def test_a_peer_that_breaks_off_under_the_attendant(
    pair: tuple[Party, Party, StreamLink, StreamLink],
) -> None:
    here, _there, mine, theirs = pair
    connection = theirs.data.socket
    assert connection is not None
    theirs.send(b"last")
    connection.shutdown(socket.SHUT_RDWR)
    assert here.await_event(PacketIn).payload == b"last"
    down = here.await_event(LinkDown)
    assert down.link is mine and down.reason == "the connection broke"


class Full:
    """A lane that always has more."""

    is_over = False
    has_more = True
    reads = 0

    def receive(self) -> None:
        self.reads += 1


def test_what_the_attendant_leaves_is_read_by_the_keeper() -> None:
    """The kernel tells nobody of it, and a consumer that always has work does not attend again."""
    lane: Any = Full()
    left: list[Any] = []
    attendance = Attendance(left.append)
    attendance._read(lane)
    assert left == [lane] and lane.reads > 1
    attendance.close()
