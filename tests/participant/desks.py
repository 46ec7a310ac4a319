"""A desk without a runner: messages in, messages out, and an image in between when a test wants one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack

from cutline.barrier import Member
from cutline.participant.desk import Desk
from cutline.participant.desk_image import desk_to_doc, load_desk, rerun
from cutline.participant.handle import Handle, bound_port
from cutline.participant.messages import (
    decode_frame,
    encode_answer,
    encode_ask,
    encode_tell,
    pack_arguments,
    pack_error,
    pack_value,
    unpack_error,
    unpack_value,
)

ME = Member("me", 1)
PEER = Member("peer", 2)


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """One desk on a test's bench. `state` makes the instance; it gets a handle to "peer" as `peer`."""

    def __init__(self, state: Any, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.state = state
        self.sent: list[tuple[str, list[Any]]] = []
        self.desk = self._desk(state())

    def _desk(self, instance: Any) -> Desk:
        desk = Desk(ME, instance, now=self.clock)
        instance.peer = Handle("peer", "", desk)
        return desk

    def _step(self, sender: Member, packet: bytes) -> None:
        self.desk.handle(sender, decode_frame(packet)[0])
        self.collect()

    def collect(self) -> None:
        """Takes what the desk wants sent."""
        for target, message in self.desk.out:
            name = target if isinstance(target, str) else target.name
            self.sent.append((name, decode_frame(message)[0]))
        self.desk.out.clear()

    def ask(self, number: int, method: str, *args: Any, **kwargs: Any) -> None:
        """Somebody asks."""
        packed = pack_arguments(args, kwargs, participant="peer", where="test")
        self._step(PEER, encode_ask(number, method, packed))

    def tell(self, method: str, *args: Any) -> None:
        """Somebody tells."""
        self._step(PEER, encode_tell(method, pack_arguments(args, {}, participant="peer", where="test")))

    def answer(self, number: int, value: Any) -> None:
        """The answer to a question of ours; an exception is one too."""
        if isinstance(value, BaseException):
            packet = encode_answer(number, False, pack_error(value, participant="peer"))
        else:
            packet = encode_answer(number, True, pack_value(value, participant="peer", where="test"))
        self._step(PEER, packet)

    def tick(self, seconds: float) -> None:
        """Time passes; what is due fires."""
        self.clock.now += seconds
        while self.desk.fire_timers():
            self.collect()

    def restored(self, state: Any = None) -> Bench:
        """Another process that takes the image of this one (as bytes) and nothing else of it."""
        packed = msgpack.packb(desk_to_doc(self.desk))
        other = Bench(state or self.state, self.clock)
        load_desk(other.desk, msgpack.unpackb(packed, strict_map_key=False))
        with bound(other):
            rerun(other.desk)
        other.collect()
        self.desk.close()
        return other

    def answers_out(self) -> dict[int, Any]:
        """What was answered to others: number of their question -> value or exception."""
        out: dict[int, Any] = {}
        for _, message in self.sent:
            if message[0] == 3:
                _, number, ok, packed = message
                load = unpack_value if ok else unpack_error
                out[number] = load(packed, participant="me", live={})
        return out

    def questions(self) -> list[tuple[int, str]]:
        """Numbers and methods of what was asked, in order."""
        return [(message[1], message[2]) for _, message in self.sent if message[0] == 1]


@contextmanager
def bound(bench: Bench) -> Iterator[Bench]:
    """A bench whose handlers can ask and emit in the name of its participant, in this thread."""
    undo = bound_port(bench.desk, thread_only=True)
    try:
        yield bench
    finally:
        undo()
