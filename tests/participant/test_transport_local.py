"""The hub: deterministic order, a scheduler that decides, broken links."""

from __future__ import annotations

import random

import pytest

from cutline.errors import PortInUse
from cutline.participant.transport import (
    CLOSED_BY_PEER,
    CLOSED_HERE,
    WRONG_TOKEN,
    Drained,
    Event,
    LinkDown,
    LinkRefused,
    LinkUp,
    PacketIn,
    Transport,
)
from cutline.participant.transport_local import Delivery, LocalHub, LocalLink, LocalTransport


class End:
    def __init__(
        self, hub: LocalHub, name: str, token: str = "secret", listen: str | None = "local:"
    ) -> None:
        self.events: list[Event] = []
        self.transport = LocalTransport(hub, token, self.events.append, listen, name, name.encode)
        self.address = self.transport.start()

    def link(self) -> LocalLink:
        (up,) = (event for event in self.events if isinstance(event, LinkUp))
        assert isinstance(up.link, LocalLink)
        return up.link

    def payloads(self) -> list[bytes]:
        return [event.payload for event in self.events if isinstance(event, PacketIn)]


def pair(hub: LocalHub) -> tuple[End, End]:
    left, right = End(hub, "left", listen=None), End(hub, "right")
    left.transport.connect(right.address, b"hello", 7)
    return left, right


def test_it_is_a_transport() -> None:
    transport: Transport = End(LocalHub(), "a").transport
    assert transport


def test_greetings_packets_and_close() -> None:
    left, right = pair(LocalHub())
    assert left.events == [LinkUp(left.link(), b"right", 7)]
    assert right.events == [LinkUp(right.link(), b"hello", None)]
    left.link().send(b"one")
    right.link().send_control(b"two")
    left.link().send(b"three")
    left.link().close()
    left.link().send(b"too late")
    assert right.payloads() == [b"one", b"three"] and left.payloads() == [b"two"]
    assert right.events[-1] == LinkDown(right.link(), CLOSED_BY_PEER)
    assert left.events[-1] == LinkDown(left.link(), CLOSED_HERE)
    assert not left.transport.links and not right.transport.links


def test_refusals() -> None:
    hub = LocalHub()
    left, stranger = End(hub, "left"), End(hub, "stranger", token="guess")
    stranger.transport.connect(left.address, b"", "k")
    stranger.transport.connect("local:nobody", b"", "k")
    assert stranger.events[0] == LinkRefused("k", WRONG_TOKEN, gone=False)
    assert isinstance(stranger.events[1], LinkRefused) and stranger.events[1].gone
    with pytest.raises(PortInUse, match="local:left"):
        End(hub, "left")
    left.transport.close()
    End(hub, "left")


def test_a_post_that_answers_on_the_spot_keeps_the_order_of_a_queue() -> None:
    hub = LocalHub()
    left = End(hub, "left", listen=None)
    trace: list[bytes] = []

    def echo(event: Event) -> None:
        if isinstance(event, PacketIn):
            trace.append(event.payload)
            if len(event.payload) < 3:
                event.link.send(event.payload + b"a")
                event.link.send(event.payload + b"b")

    echoing = LocalTransport(hub, "secret", echo, "local:", "echo")
    left.transport.connect(echoing.start(), b"", None)
    left.link().send(b"1")
    left.link().send(b"2")
    assert trace == [b"1", b"2"]
    assert left.payloads() == [b"1a", b"1b", b"2a", b"2b"]


def test_a_scheduler_decides_order_and_loss() -> None:
    waiting: list[Delivery] = []
    left, right = pair(LocalHub(waiting.append))
    assert not left.events
    waiting.pop().deliver()
    for number in range(4):
        left.link().send(b"%d" % number)
    left.link().send_control(b"marker")
    assert left.link().backlog == 10
    assert [(d.kind, d.source, d.target) for d in waiting] == [("data", "left", "right")] * 4 + [
        ("control", "left", "right")
    ]
    waiting.pop().deliver()
    waiting[0].deliver()
    waiting[0].deliver()
    waiting[1].drop()
    assert right.payloads() == [b"marker", b"0"]
    right.link().sever("a cable was cut")
    for delivery in waiting:
        delivery.deliver()
    assert right.payloads() == [b"marker", b"0"] and left.link().backlog == 0
    assert left.events[-1] == LinkDown(left.link(), "a cable was cut")
    assert right.events[-1] == LinkDown(right.link(), "a cable was cut")


def test_one_seed_gives_one_trace() -> None:
    def run(seed: int) -> str:
        draw, waiting = random.Random(seed), list[Delivery]()
        left, right = pair(LocalHub(waiting.append))
        waiting.pop().deliver()
        for number in range(50):
            draw.choice((left, right)).link().send(b"%d" % number)
            if draw.random() < 0.5:
                waiting.pop(draw.randrange(len(waiting))).deliver()
        return repr([left.payloads(), right.payloads(), waiting])

    assert run(1) == run(1) != run(2)


def test_crash_and_backlog() -> None:
    waiting: list[Delivery] = []
    left, right = pair(LocalHub(waiting.append))
    waiting.pop().deliver()
    left.link().send(b"x" * 2_000_000)
    waiting.pop().deliver()
    assert Drained(left.link()) in left.events
    before = list(right.events)
    right.transport.crash()
    assert right.events == before and isinstance(left.events[-1], LinkDown)
    left.transport.connect(right.address, b"", "again")
    waiting.pop().deliver()
    assert isinstance(left.events[-1], LinkRefused) and left.events[-1].gone
