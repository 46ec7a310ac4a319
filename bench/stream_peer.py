"""The baseline of channel_vs_transport: batches of calls over the same transport, and nothing else.

Two processes, a receiver and a sender, run by `StreamPair`. Calls are made, encoded and dispatched as
participants do it (a `Handle` and a `Desk` at both ends), batches are as large as frames; but there are no
numbers, digests, acks, credit, captures, counters or flight recorder. ``bare`` leaves handles and desks out
as well: a loop that decodes and calls, the least that a program with one kind of message could do.

Each process takes one JSON document a line on standard input and answers with one a line.
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Callable
from typing import Any

from bench.peers.child import Child
from bench.sender_receiver import CHUNK, Receiver, send_chunk
from cutline.barrier import Member
from cutline.barrier.channel import FRAME_BYTES, FRAME_MESSAGES
from cutline.participant.classes import name_of
from cutline.participant.desk import Desk, HandlerRaised
from cutline.participant.handle import Handle
from cutline.participant.messages import TELL, encode_tell, read_frame
from cutline.participant.method_table import MethodTable
from cutline.participant.transport import Link, LinkUp, PacketIn
from cutline.participant.transport_stream import StreamTransport

__all__ = ("StreamPair",)

_TOKEN = "bench"


class _Stub:
    """What stands for the receiver at a bare sender: ``stub.take.tell(...)`` collects an encoded call."""

    def __init__(self, out: list[bytes]) -> None:
        self.out = out
        self.take = self

    def tell(self, payload: bytes) -> None:
        self.out.append(encode_tell("take", (payload,)))


def _desk(name: str, instance: object) -> Desk:
    return Desk(Member(name, 1), instance, class_name="", methods_of=MethodTable().methods_of)


def _dispatch(desk: Desk, sender: Member, body: bytes) -> None:
    """A batch's calls, one after the other, as `cutline.participant.handling` makes them."""
    methods, after = desk.sync_methods, desk.after
    for message in read_frame(body):
        kind, _number, method, packed = message
        if kind == TELL and type(packed) is list and method in methods:
            desk.in_handler = method
            try:
                methods[method](*packed)
            except Exception as error:
                raise HandlerRaised(method, error) from error
            if after:
                desk.drain()
        else:
            desk.handle(sender, message)


def _dispatch_bare(receiver: Receiver, body: bytes) -> None:
    methods: dict[str, Callable[..., Any]] = {"take": receiver.take}
    for _kind, _number, method, packed in read_frame(body):
        methods[method](*packed)


def _send_batches(link: Link, out: list[bytes]) -> None:
    start = 0
    while start < len(out):
        stop, size = start, 0
        while stop < len(out) and stop - start < FRAME_MESSAGES and size < FRAME_BYTES:
            size += len(out[stop])
            stop += 1
        link.send(b"".join(out[start:stop]))
        start = stop
    out.clear()


def _say(**doc: Any) -> None:
    print(json.dumps(doc), flush=True)


def _receive() -> None:
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    transport = StreamTransport(_TOKEN, events.put, "unix:", "receiver")
    _say(address=transport.start())
    sender = Member("sender", 1)
    for line in sys.stdin:
        order = json.loads(line)
        receiver = Receiver()
        receiver.expect(order["messages"])
        desk = _desk("receiver", receiver)
        _say(ready=True)
        while not receiver.ended:
            event = events.get()
            if not isinstance(event, PacketIn):
                continue
            if order["bare"]:
                _dispatch_bare(receiver, event.payload)
            else:
                _dispatch(desk, sender, event.payload)
        _say(count=receiver.count, bytes=receiver.bytes, ended=receiver.ended)
    transport.close()


def _send(address: str) -> None:
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    transport = StreamTransport(_TOKEN, events.put, None, "sender")
    transport.start()
    transport.connect(address, b"", "receiver")
    event = events.get(timeout=30)
    assert isinstance(event, LinkUp), event
    out: list[bytes] = []
    stub = _Stub(out)
    desk = _desk("sender", None)
    handle = Handle("receiver", name_of(Receiver), desk)
    _say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        left, payload = order["messages"], bytes(order["size"])
        began = Receiver.clock()
        while left > 0:
            if order["bare"]:
                send_chunk(stub, payload, min(CHUNK, left))
            else:
                send_chunk(handle, payload, min(CHUNK, left))
                out += [message for _target, message in desk.out]
                desk.out.clear()
            _send_batches(event.link, out)
            left -= CHUNK
        _say(began=began)
    transport.close()


class StreamPair:
    """Both processes of the baseline, and one measurement after the other."""

    def __init__(self) -> None:
        self._receiver = Child("bench.stream_peer", "receive")
        try:
            self._sender = Child("bench.stream_peer", "send", self._receiver.ready["address"])
        except BaseException:
            self._receiver.close()
            raise

    def rate(self, messages: int, size: int, *, bare: bool = False) -> float:
        """Messages a second, from the sender's first call to the receiver's last."""
        self._receiver.ask(messages=messages, bare=bare)
        began = self._sender.ask(messages=messages, size=size, bare=bare)["began"]
        report = self._receiver.hear()
        if (report["count"], report["bytes"]) != (messages, messages * size):
            raise AssertionError(f"the baseline lost or doubled messages: {report}")
        return messages / float(report["ended"] - began)

    def close(self) -> None:
        """Ends both."""
        self._sender.close()
        self._receiver.close()


if __name__ == "__main__":
    _receive() if sys.argv[1] == "receive" else _send(sys.argv[2])
